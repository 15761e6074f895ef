"""Which decoders native code can step through, and why not others."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from suffice.errors import ConfigError
from suffice.layers.packed import Packed
from suffice.layers.rms_norm import RMSNorm
from suffice.memory import Memory
from suffice.mixing.value_map import ValueMap
from suffice.models.lm import LM
from suffice.native import held, library
from suffice.native.matrix import KINDS
from suffice.ops.linear import Linear
from suffice.patterns import Causal, Pattern, Window
from suffice.patterns.combined import And
from suffice.positions import Alibi, NoPosition, Rope
from suffice.projections.base import Columns
from suffice.spec import AttentionSpec

WIDEST, MOST_QUERIES = 512, 128  # of suffice/csrc: features of a head, heads that share keys
POSITIONS = (Alibi, NoPosition, Rope)
MAPS = (Linear, Packed, Columns, nn.Embedding)
NORMS = (RMSNorm, nn.LayerNorm)
ACTIVATIONS = ("gelu", "relu", "swiglu")


def why_not(lm: object, memory: Memory) -> str:
    """Return why native code cannot step through a model, or "" if it can.

    Args:
        lm: any model.
        memory: of the states it would step with.
    """
    if type(lm) is not LM:
        return f"{type(lm).__name__} is no LM as it is"
    if not library.available():
        return library.why_not()
    if lm.config.activation not in ACTIVATIONS:
        return f"kernels know no {lm.config.activation}"
    if lm.device.type != "cpu":
        return f"the model lies on {lm.device}"
    reasons = (
        f"layer {number}: {reason}"
        for number, spec in enumerate(lm.specs)
        if (reason := _why_not_layer(spec, memory) or held.why_not(memory, spec.head_width))
    )
    return next(reasons, "") or next(_strangers(lm), "")


def _why_not_layer(spec: AttentionSpec, memory: Memory) -> str:
    """Return what of a composition native code does not know, or ""."""
    if not spec.kernel.weighs_pairs:
        return f"{type(spec.kernel).__name__} keeps sums of features"
    if spec.mixing.mixes and not spec.mixing.keeps_keys:
        return f"{type(spec.mixing).__name__} sums keys"
    if spec.mixing.mixes and memory.rounds:
        return f"{type(spec.mixing).__name__} reads values that {type(memory).__name__} rounds"
    if spec.projections.shares and spec.projections.learns_keys:
        return f"{type(spec.projections).__name__} reads values from the map of the keys"
    if spec.past.reads:
        return f"{type(spec.past).__name__} compresses the past"
    if type(spec.position) not in POSITIONS:
        return f"{type(spec.position).__name__} counts positions in its own way"
    shared = spec.num_heads // spec.kv_heads
    if spec.head_width > WIDEST or shared > MOST_QUERIES:
        return f"heads of {spec.head_width} features, {shared} on each key, are too large"
    try:
        window_of(spec.pattern)
    except ConfigError as error:
        return str(error)
    return ""


def _strangers(lm: LM) -> Iterator[str]:
    """Give modules that do more, or hold other numbers, than native code would read of them."""
    for name, module in lm.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            yield f"{name} has hooks, which would not be called"
        leaf = next(module.parameters(recurse=False), None)
        if leaf is None or isinstance(module, ValueMap):
            continue
        if type(module) not in (*MAPS, *NORMS):
            yield f"{name} is a {type(module).__name__}, not a plain map or norm"
        if leaf.dtype not in KINDS:
            yield f"{name} is {leaf.dtype}; kernels read float32, float16 and bfloat16"
        if leaf.device.type != "cpu":
            yield f"{name} lies on {leaf.device}"


def window_of(pattern: Pattern) -> int | None:
    """Return how many last positions a query sees; None = all.

    Raises:
        ConfigError: for a pattern of another form.

    Example:
        >>> window_of(Window(8) & Causal())
        8
    """
    if isinstance(pattern, Causal):
        return None
    if isinstance(pattern, And) and all(isinstance(p, (Causal, Window)) for p in pattern.parts):
        return min((p.size for p in pattern.parts if isinstance(p, Window)), default=None)
    raise ConfigError(f"{pattern!r} is neither causal nor a causal window")
