"""Llama and the models that differ from it in a detail: which maps have biases, how far it sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from suffice.convert.sources.family import Family, Given, Part, linear, norm
from suffice.encoders import HeadRMS, NoNorm
from suffice.errors import ConfigError
from suffice.models import LM, LMConfig
from suffice.patterns import Causal, Window
from suffice.positions import LinearScaling, Llama3Scaling, NoPosition, Rope, YarnScaling
from suffice.positions.rope import Scaling
from suffice.spec import AttentionSpec

SEES = ("full_attention", "sliding_attention")
WINDOW = "sliding_window"
Windows = Callable[[Given, list[bool]], list[int | None]]
"""How many last tokens each layer sees, None = all, told which layers turn."""


def no_windows(_given: Given, turns: list[bool]) -> list[int | None]:
    """Return that every layer sees all, whatever the file says of windows."""
    return [None] * len(turns)


def equal_windows(absent: int | None = None) -> Windows:
    """Return what gives every layer the same window.

    Args:
        absent: the window where the file has no entry; None = all. An entry that is null is all.
    """

    def found(given: Given, turns: list[bool]) -> list[int | None]:
        size = given.entries.get(WINDOW, absent)
        return [None if size is None else given.size(WINDOW, absent)] * len(turns)

    return found


def late_windows(given: Given, turns: list[bool]) -> list[int | None]:
    """Return windows from a certain layer on, unless the file tells them layer by layer."""
    first = given.entries.get("max_window_layers", 28)
    if isinstance(first, bool) or not isinstance(first, int):
        raise ConfigError(f"{given.where}: max_window_layers={first!r:.40} is no whole number.")
    return _by_kind(given, [number >= first for number in range(len(turns))], absent=4096)


def windows_unturned(given: Given, turns: list[bool]) -> list[int | None]:
    """Return windows where a layer does not turn, unless the file tells them layer by layer."""
    return _by_kind(given, [not turned for turned in turns], absent=None)


def _by_kind(given: Given, windowed: list[bool], *, absent: int | None) -> list[int | None]:
    """Return the windows of layers, where they are in use at all."""
    depth = len(windowed)
    kinds = given.entries.get("layer_types")
    if kinds is None:
        kinds = [SEES[one] for one in windowed]
    if not isinstance(kinds, list) or len(kinds) != depth or any(k not in SEES for k in kinds):
        raise ConfigError(
            f"{given.where}: layer_types={kinds!r:.80} are not {' or '.join(SEES)} for each of "
            f"{depth} layers."
        )
    used = given.flag("use_sliding_window") and given.entries.get(WINDOW, absent) is not None
    if not used:
        return [None] * depth
    return [given.size(WINDOW, absent) if kind == SEES[1] else None for kind in kinds]


def all_turn(_given: Given, depth: int) -> list[bool]:
    """Return that every layer turns queries and keys."""
    return [True] * depth


def some_turn(given: Given, depth: int) -> list[bool]:
    """Return which layers turn: as listed, else all but each fourth, or other interval."""
    found = given.entries.get("no_rope_layers")
    if found is None:
        every = given.size("no_rope_layer_interval", 4)
        return [(number + 1) % every != 0 for number in range(depth)]
    if not isinstance(found, list) or len(found) != depth:
        raise ConfigError(f"{given.where}: no_rope_layers={found!r:.80} is not for {depth} layers.")
    return [bool(one) for one in found]


LEGAL = "default, linear, llama3 and yarn"


def rope_of(
    given: Given,
    head_dim: int,
    layout: str = "half",
    *,
    theta: float = 10_000.0,
    share: float | None = 1.0,
) -> Rope:
    """Return the rotary positions of a configuration, in its older or newer words.

    Args:
        given: the configuration.
        head_dim: width of a head.
        layout: of the pairs, see `Rope`.
        theta: where none is given.
        share: of the features that turn, where none is given; None = all, and no other is legal.

    Raises:
        ConfigError: for a kind of scaling that is not known here, or words that contradict.
    """
    entries = dict(given.entries)
    newer, older = entries.get("rope_parameters") or {}, entries.get("rope_scaling") or {}
    if newer and older and newer != older:
        raise ConfigError(
            f"{given.where}: rope_parameters={newer!r:.80} and rope_scaling={older!r:.80} differ; "
            "leave the one that is true."
        )
    nested = newer or older
    if not isinstance(nested, dict) or any(isinstance(one, dict) for one in nested.values()):
        raise ConfigError(
            f"{given.where}: rope_parameters={nested!r:.80} differ by kind of layer, which is not "
            "read."
        )
    one = Given({**entries, **nested}, given.where)
    if share is None:
        share = one.only("partial_rotary_factor", 1.0)
    features = int(head_dim * one.number("partial_rotary_factor", share))
    return Rope(
        one.number("rope_theta", theta),
        layout=layout,
        features=None if features == head_dim else features,
        scaling=_scaling(one, nested.get("rope_type", nested.get("type", "default"))),
    )


def _scaling(one: Given, kind: object) -> Scaling | None:
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(one.number("factor"))
    longest = one.entries.get("max_position_embeddings")
    if kind == "llama3":
        return Llama3Scaling(
            one.number("factor"),
            length=one.size("original_max_position_embeddings", longest),
            low=one.number("low_freq_factor"),
            high=one.number("high_freq_factor"),
        )
    if kind == "yarn":
        for name in ("mscale", "mscale_all_dim"):
            one.only(name, None)
        told = one.entries.get("attention_factor") is not None
        return YarnScaling(
            one.number("factor"),
            length=one.size("original_max_position_embeddings", longest),
            fast=one.number("beta_fast", 32.0),
            slow=one.number("beta_slow", 1.0),
            attention_factor=one.number("attention_factor") if told else None,
            truncate=one.flag("truncate", default=True),
        )
    raise ConfigError(f"{one.where}: rotary scaling {kind!r:.40} is not known; {LEGAL} are.")


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
