"""GPT-2."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from suffice.convert.sources.family import Family, Given, Part, linear, norm
from suffice.errors import ConfigError
from suffice.models import LM, LMConfig
from suffice.patterns import Causal
from suffice.spec import AttentionSpec

ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
}


def _build(given: Given) -> LM:
    width, heads = given.size("n_embd"), given.size("n_head")
    given.only("add_cross_attention", False)
    if width % heads:
        raise ConfigError(f"{given.where}: n_head={heads} does not divide n_embd={width}.")
    config = LMConfig(
        vocabulary_size=given.size("vocab_size"),
        length=given.size("n_positions"),
        d_model=width,
        depth=given.depth("n_layer"),
        mlp_width=given.size("n_inner", 4 * width),
        activation=ACTIVATIONS[given.only("activation_function", *ACTIVATIONS)],
        eps=given.number("layer_norm_epsilon", 1e-5),
        tied=given.flag("tie_word_embeddings", default=True),
    )
    spec = AttentionSpec(d_model=width, num_heads=heads, pattern=Causal())
    if not given.flag("scale_attn_weights", default=True):
        spec = replace(spec, scale=1.0)
    if not given.flag("scale_attn_by_inverse_layer_idx"):
        return config.build(spec, device="meta")
    depths = range(1, config.depth + 1)
    specs = [replace(spec, scale=spec.score_scale / depth) for depth in depths]
    return config.build(specs, device="meta")


def _parts(lm: nn.Module, given: Given) -> list[Part]:  # noqa: ARG001
    parts = [
        Part(theirs="transformer.wte.weight", ours=("embedding.tokens.weight",)),
        Part(theirs="transformer.wpe.weight", ours=("embedding.positions.weight",)),
        *norm("transformer.ln_f", "norm", bias=True),
    ]
    if lm.head is not None:
        parts.append(Part(theirs="lm_head.weight", ours=("head.weight",)))
    for number in range(len(lm.blocks)):
        t, o = f"transformer.h.{number}", f"blocks.{number}"
        qkv = tuple(f"{o}.attention.{name}_proj" for name in "qkv")
        parts += norm(f"{t}.ln_1", f"{o}.attention_norm", bias=True)
        parts += linear(f"{t}.attn.c_attn", qkv, transposed=True)
        parts += linear(f"{t}.attn.c_proj", f"{o}.attention.o_proj", transposed=True)
        parts += norm(f"{t}.ln_2", f"{o}.mlp_norm", bias=True)
        parts += linear(f"{t}.mlp.c_fc", f"{o}.mlp.up", transposed=True)
        parts += linear(f"{t}.mlp.c_proj", f"{o}.mlp.down", transposed=True)
    return parts


GPT2 = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    build=_build,
    parts=_parts,
    prefix="transformer.",
    derived=(".attn.bias", ".attn.masked_bias"),
)
