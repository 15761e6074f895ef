"""Llama and the models that differ from it in a detail: which maps have biases, how far it sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from suffice.convert.sources.family import Family, linear, norm
from suffice.convert.sources.given import Given
from suffice.convert.sources.layers import (
    Windows,
    all_turn,
    equal_windows,
    late_windows,
    no_windows,
    some_turn,
    windows_unturned,
)
from suffice.convert.sources.parts import Part
from suffice.convert.sources.rotary import rope_of
from suffice.errors import ConfigError
from suffice.models import LM, LMConfig
from suffice.norms import HeadRMS, NoNorm
from suffice.patterns import Causal, Window
from suffice.positions import NoPosition
from suffice.spec import AttentionSpec


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What tells one of them from the others.

    Args:
        qkv_bias: whether the maps of queries, keys and values have biases.
        o_bias: whether the output map has one.
        mlp_bias: whether those of the MLP have.
        norm: "rms", or "layer" with biases.
        eps: name of the norms' eps.
        layout: of rotary pairs.
        packed: whether q, k, v are one map, and gate and up another.
        tied: whether the head is the embedding where the file does not say.
        qk_norm: whether each head's queries and keys are divided by their root mean square.
        theta: of rotary positions, where the file does not say.
        share: of a head's features that turn where the file does not say; None = always all.
        turns: which layers turn queries and keys.
        windows: how far each layer sees.
        refuses: entries and what they must hold.
    """

    qkv_bias: Callable[[Given], bool] = lambda given: given.flag("attention_bias")
    o_bias: Callable[[Given], bool] = lambda given: given.flag("attention_bias")
    mlp_bias: Callable[[Given], bool] = lambda given: given.flag("mlp_bias")
    norm: str = "rms"
    eps: str = "rms_norm_eps"
    layout: str = "half"
    packed: bool = False
    tied: bool = False
    qk_norm: bool = False
    theta: float = 10_000.0
    share: float | None = None
    turns: Callable[[Given, int], list[bool]] = all_turn
    windows: Windows = no_windows
    refuses: tuple[tuple[str, object], ...] = ()


def _never(_given: Given) -> bool:
    return False


def _always(_given: Given) -> bool:
    return True


def _build(given: Given, kind: Kind) -> LM:
    given.only("hidden_act", "silu")
    for name, legal in kind.refuses:
        given.only(name, legal)
    width, heads = given.size("hidden_size"), given.size("num_attention_heads")
    depth = given.depth("num_hidden_layers")
    if width % heads and given.entries.get("head_dim") is None:
        raise ConfigError(
            f"{given.where}: num_attention_heads={heads} does not divide hidden_size={width}, and "
            "there is no head_dim."
        )
    head_dim = given.size("head_dim", width // heads)
    config = LMConfig(
        vocabulary_size=given.size("vocab_size"),
        length=given.size("max_position_embeddings"),
        d_model=width,
        depth=depth,
        mlp_width=given.size("intermediate_size"),
        activation="swiglu",
        norm=kind.norm,
        eps=given.number(kind.eps),
        positions="none",
        bias=kind.norm == "layer" or kind.mlp_bias(given),
        tied=given.flag("tie_word_embeddings", default=kind.tied),
    )
    spec = AttentionSpec(
        d_model=width,
        num_heads=heads,
        num_kv_heads=given.size("num_key_value_heads", heads),
        head_dim=None if head_dim * heads == width else head_dim,
        pattern=Causal(),
        norm=HeadRMS(given.number(kind.eps)) if kind.qk_norm else NoNorm(),
        position=rope_of(given, head_dim, kind.layout, theta=kind.theta, share=kind.share),
        bias=kind.qkv_bias(given) or kind.o_bias(given),
    )
    turns = kind.turns(given, depth)
    sees = kind.windows(given, turns)
    specs = [
        replace(
            spec,
            pattern=Causal() if size is None else Window(size) & Causal(),
            position=spec.position if turned else NoPosition(),
        )
        for size, turned in zip(sees, turns, strict=True)
    ]
    return config.build(specs, device="meta")


def _parts(lm: nn.Module, given: Given, kind: Kind) -> list[Part]:
    normed = {"bias": kind.norm == "layer"}
    parts = [Part(theirs="model.embed_tokens.weight", ours=("embedding.tokens.weight",))]
    parts += norm("model.norm", "norm", **normed)
    if lm.head is not None:
        parts.append(Part(theirs="lm_head.weight", ours=("head.weight",)))
    qkv_bias, o_bias, mlp_bias = (f(given) for f in (kind.qkv_bias, kind.o_bias, kind.mlp_bias))
    in_attention = {"bias": qkv_bias if qkv_bias or o_bias else None}
    of_output = {"bias": o_bias if qkv_bias or o_bias else None}
    in_mlp = {"bias": mlp_bias if lm.config.bias else None}
    for number in range(len(lm.blocks)):
        t, o = f"model.layers.{number}", f"blocks.{number}"
        parts += norm(f"{t}.input_layernorm", f"{o}.attention_norm", **normed)
        parts += norm(f"{t}.post_attention_layernorm", f"{o}.mlp_norm", **normed)
        parts += linear(f"{t}.self_attn.o_proj", f"{o}.attention.o_proj", **of_output)
        for name in ("q_norm", "k_norm") if kind.qk_norm else ():
            parts += norm(f"{t}.self_attn.{name}", f"{o}.attention.{name}", bias=False)
        parts += linear(f"{t}.mlp.down_proj", f"{o}.mlp.down", **in_mlp)
        if kind.packed:
            qkv = tuple(f"{o}.attention.{name}_proj" for name in "qkv")
            parts += linear(f"{t}.self_attn.qkv_proj", qkv, **in_attention)
            both = (f"{o}.mlp.gate", f"{o}.mlp.up")
            parts += linear(f"{t}.mlp.gate_up_proj", both, **in_mlp)
            continue
        for name in "qkv":
            theirs, ours = f"{t}.self_attn.{name}_proj", f"{o}.attention.{name}_proj"
            parts += linear(theirs, ours, **in_attention)
        for name in ("gate", "up"):
            parts += linear(f"{t}.mlp.{name}_proj", f"{o}.mlp.{name}", **in_mlp)
    return parts


def _family(model_type: str, architecture: str, kind: Kind) -> Family:
    return Family(
        model_type=model_type,
        architecture=architecture,
        build=lambda given: _build(given, kind),
        parts=lambda lm, given: _parts(lm, given, kind),
        prefix="model.",
        derived=(".rotary_emb.inv_freq",),
    )


NO_BIASES = {"qkv_bias": _never, "o_bias": _never, "mlp_bias": _never}

FAMILIES = (
    _family("llama", "LlamaForCausalLM", Kind()),
    _family("mistral", "MistralForCausalLM", Kind(**NO_BIASES, windows=equal_windows(4096))),
    _family(
        "qwen2",
        "Qwen2ForCausalLM",
        Kind(qkv_bias=_always, o_bias=_never, mlp_bias=_never, windows=late_windows),
    ),
    _family("qwen3", "Qwen3ForCausalLM", Kind(mlp_bias=_never, qk_norm=True, windows=late_windows)),
    _family(
        "smollm3",
        "SmolLM3ForCausalLM",
        Kind(tied=True, theta=2_000_000.0, turns=some_turn, windows=windows_unturned),
    ),
    _family(
        "helium",
        "HeliumForCausalLM",
        Kind(o_bias=_never, layout="interleaved", theta=100_000.0),
    ),
    _family(
        "phi3",
        "Phi3ForCausalLM",
        Kind(**NO_BIASES, packed=True, share=1.0, windows=equal_windows()),
    ),
    _family(
        "stablelm",
        "StableLmForCausalLM",
        Kind(
            qkv_bias=lambda given: given.flag("use_qkv_bias"),
            o_bias=_never,
            mlp_bias=_never,
            norm="layer",
            eps="layer_norm_eps",
            share=0.25,
            refuses=(("qk_layernorm", False), ("use_parallel_residual", False)),
        ),
    ),
)
