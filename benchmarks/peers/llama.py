"""transformers' Llama with the weights of one of our models."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from benchmarks.peers.installed import package
from suffice.models import LM

ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate", "up", "down")


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
            max_position_embeddings=8192,
            rms_norm_eps=config.eps,
            tie_word_embeddings=config.tied,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    )
    model.load_state_dict(dict(_weights(lm)), strict=True)
    return model.eval()


def _weights(lm: LM) -> Any:
    own = lm.state_dict()
    yield "model.embed_tokens.weight", own["embedding.tokens.weight"]
    yield "lm_head.weight", own.get("head.weight", own["embedding.tokens.weight"])
    yield "model.norm.weight", own["norm.weight"]
    for n in range(lm.config.depth):
        ours, theirs = f"blocks.{n}", f"model.layers.{n}"
        yield f"{theirs}.input_layernorm.weight", own[f"{ours}.attention_norm.weight"]
        yield f"{theirs}.post_attention_layernorm.weight", own[f"{ours}.mlp_norm.weight"]
        for name in ATTENTION:
            yield f"{theirs}.self_attn.{name}.weight", own[f"{ours}.attention.{name}.weight"]
        for name in MLP:
            yield f"{theirs}.mlp.{name}_proj.weight", own[f"{ours}.mlp.{name}.weight"]


def written(model: nn.Module, tokens: Tensor, new: int) -> Tensor:
    """Return the tokens that `generate` writes greedily behind a prompt, [B, new]."""
    options = {"max_new_tokens": new, "do_sample": False}
    options["attention_mask"] = tokens.new_ones(tokens.shape)
    return model.generate(tokens, **options)[:, tokens.shape[1] :]
