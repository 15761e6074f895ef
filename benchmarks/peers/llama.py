"""transformers' LlamaForCausalLM with our weights, as its `generate` runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers.decoders import Decoder, Run, head, layers, run_of
from benchmarks.peers.installed import package
from suffice.models import LM

BITS = (32,)
NAMES = {name: f"self_attn.{name}_proj" for name in "qkvo"} | {
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
}


def make(lm: LM, *, bits: int, room: int, folder: Path, rows: int) -> Decoder:  # noqa: ARG001
    """Return the peer, which takes any room and rows, and reads no files."""
    return Transformers(llama(lm))


def llama(lm: LM) -> nn.Module:
    """Return a LlamaForCausalLM of the shape and the weights of a Llama-like model.

    Raises:
        Absent: if transformers is not installed.
    """
    transformers = package("transformers", "transformers")
    config, spec = lm.config, lm.specs[0]
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocabulary_size,
            hidden_size=config.d_model,
            intermediate_size=config.mlp_width,
            num_hidden_layers=config.depth,
            num_attention_heads=spec.num_heads,
            num_key_value_heads=spec.kv_heads,
            head_dim=spec.head_width,
            max_position_embeddings=8192,
            rms_norm_eps=config.eps,
            tie_word_embeddings=config.tied,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    )
    model.load_state_dict(_weights(lm), strict=True)
    return model.eval()


def _weights(lm: LM) -> dict[str, Tensor]:
    weights = {
        "model.embed_tokens.weight": lm.embedding.tokens.weight,
        "lm_head.weight": head(lm),
        "model.norm.weight": lm.norm.weight,
    }
    for number, layer in enumerate(layers(lm)):
        for name, path in NAMES.items():
            weights[f"model.layers.{number}.{path}.weight"] = layer[name]
    return weights


def written(model: nn.Module, tokens: Tensor, new: int, **options: Any) -> Tensor:
    """Return the tokens that `generate` writes greedily after prompts, [B, new]."""
    options |= {"max_new_tokens": new, "do_sample": False}
    options["attention_mask"] = tokens.new_ones(tokens.shape)
    return model.generate(tokens, **options)[:, tokens.shape[1] :]


class Ticks:
    """A streamer that notes when tokens come; the prompt comes first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.ticks: list[float] = []

    def put(self, _: Tensor) -> None:
        """Note the time."""
        self.ticks.append(self.clock())

    def end(self) -> None:
        """Do nothing."""


class Transformers:
    """`generate()` with its defaults, greedy."""

    name = "transformers"
    clock = staticmethod(perf_counter)

    def __init__(self, model: nn.Module) -> None:
        from suffice.hf.cache import CACHE_NAME

        self.model, self.cache_name = model, CACHE_NAME

    def write(self, prompt: Tensor, new: int) -> Run:
        """Write the likeliest tokens after a prompt."""
        streamer = Ticks(self.clock)
        start = self.clock()
        if prompt.dim() > 1:  # its streamers take one row
            return self._write_rows(prompt, new)
        tokens = written(self.model, prompt[None], new, streamer=streamer)[0]
        return run_of(tokens.tolist(), len(prompt), [start, *streamer.ticks[1:]])

    def _write_rows(self, prompts: Tensor, new: int) -> Run:
        tokens, cache, ids, ticks = [], None, prompts, [self.clock()]
        with torch.inference_mode():
            for _ in range(new):
                out = self.model(ids, **{self.cache_name: cache}, use_cache=True, logits_to_keep=1)
                cache = out[self.cache_name]
                ids = out.logits[:, -1].argmax(-1, keepdim=True)
                tokens.append(int(ids[0]))
                ticks.append(self.clock())
        return run_of(tokens, prompts.shape[1], ticks)

    def logits(self, prompt: Tensor, following: Tensor) -> Tensor:
        """Return logits of the model with its cache."""
        logits, cache = [], None
        with torch.inference_mode():
            for piece in (prompt, *following.split(1)):
                out = self.model(piece[None], **{self.cache_name: cache}, use_cache=True)
                cache = out[self.cache_name]
                logits.append(out.logits[0, -1])
        return torch.stack(logits)
