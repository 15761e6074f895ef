"""transformers' LlamaForCausalLM as its `generate` runs it."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from suffice.measure.edge.peers import package
from suffice.measure.edge.peers.names import head, layers
from suffice.measure.edge.run import Run, Side, run_of
from suffice.models import LM

BITS = (32,)
NAMES = {name: f"self_attn.{name}_proj" for name in "qkvo"} | {
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
}


def make(lm: LM, *, bits: int, room: int, folder: Path) -> Side:  # noqa: ARG001 - alike for peers
    """Return the side; it takes any room and reads no files."""
    return Transformers(llama(lm))


def llama(lm: LM) -> nn.Module:
    """Return a LlamaForCausalLM of the shape and the weights of a Llama-like model.

    Raises:
        ConfigError: if transformers is not installed.
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
    found = {
        "model.embed_tokens.weight": lm.embedding.tokens.weight,
        "lm_head.weight": head(lm),
        "model.norm.weight": lm.norm.weight,
    }
    for number, own in enumerate(layers(lm)):
        for name, path in NAMES.items():
            found[f"model.layers.{number}.{path}.weight"] = own[name]
    return found


def written(model: nn.Module, tokens: Tensor, new: int, **options: Any) -> Tensor:
    """Return the tokens that `generate` writes greedily behind prompts, [B, new]."""
    options |= {"max_new_tokens": new, "do_sample": False}
    options["attention_mask"] = tokens.new_ones(tokens.shape)
    return model.generate(tokens, **options)[:, tokens.shape[1] :]


class Ticks:
    """A streamer that notes when tokens come; the first thing it is given is the prompt."""

    def __init__(self) -> None:
        self.ticks: list[float] = []

    def put(self, _: Tensor) -> None:
        """Note the time."""
        self.ticks.append(perf_counter())

    def end(self) -> None:
        """Nothing is left to note."""


class Transformers(Side):
    """`generate()` with its defaults, greedy."""

    name = "transformers"

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def write(self, prompt: Tensor, new: int) -> Run:
        """Write the likeliest tokens behind a prompt."""
        noted = Ticks()
        start = perf_counter()
        found = written(self.model, prompt[None], new, streamer=noted)[0]
        return run_of(found.tolist(), len(prompt), [start, *noted.ticks[1:]])

    def logits(self, prompt: Tensor, following: Tensor) -> Tensor:
        """Return logits of the model with its cache."""
        found, cache = [], None
        with torch.inference_mode():
            for piece in (prompt, *following.split(1)):
                out = self.model(piece[None], past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                found.append(out.logits[0, -1])
        return torch.stack(found)
