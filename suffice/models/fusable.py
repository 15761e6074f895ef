"""Which decoders native code can step through, and why not others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from suffice.axis import Axis
from suffice.errors import ConfigError
from suffice.kernels import Softmax
from suffice.layers import Dropout
from suffice.layers.packed import Packed, PackedEmbedding, PackedLinear
from suffice.memory import Memory
from suffice.mixing.value_map import ValueMap
from suffice.models.lm import LM, LMConfig
from suffice.native import held, library
from suffice.native.matrix import KINDS
from suffice.norms import HeadRMS, NoNorm
from suffice.ops.linear import Linear
from suffice.patterns import Causal, Global, Pattern, Window
from suffice.patterns.combined import And, Or
from suffice.positions import Alibi, NoPosition, Rope
from suffice.spec import AttentionSpec

WIDEST, MOST_QUERIES = 512, 128  # of suffice/csrc: features of a head, heads that share keys
POSITIONS = (Alibi, NoPosition, Rope)
NORMS = (HeadRMS, NoNorm)
MAPS = (Linear, nn.Embedding)  # which a packed matrix may stand for
PACKED = (PackedLinear, PackedEmbedding)  # those the kernels read; torchao has its own
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
    for value, known, does in _of_ones_own(spec):
        if type(value) not in known:
            return f"{type(value).__name__} {does} in its own way"
    shared = spec.num_heads // spec.kv_heads
    if spec.head_width > WIDEST or shared > MOST_QUERIES:
        return f"heads of {spec.head_width} features, {shared} on each key, are too large"
    try:
        window, sinks = seen_of(spec.pattern)
    except ConfigError as error:
        return str(error)
    return held.why_not_sinks(memory, window, sinks)


def _of_ones_own(spec: AttentionSpec) -> Iterator[tuple[Axis, tuple[type, ...], str]]:
    """Give values that somebody else may have written, the known ones, and what they do."""
    yield spec.kernel, (Softmax,), "weighs pairs"
    yield spec.norm, NORMS, "divides queries and keys"
    yield spec.position, POSITIONS, "counts positions"


@dataclass(frozen=True)
class _Usual:
    """A module as a config builds it: class, what it says of itself, shapes of its own tensors."""

    kind: type[nn.Module]
    told: str
    shapes: dict[str, torch.Size]

    @classmethod
    def of(cls, module: nn.Module) -> _Usual:
        """Describe a module."""
        own = module._parameters.items()
        return cls(type(module), module.extra_repr(), {n: p.shape for n, p in own if p is not None})


@lru_cache(maxsize=16)
def _as_built(config: LMConfig, specs: tuple[AttentionSpec, ...]) -> dict[str, _Usual]:
    """Return every module of a model, by name, as it is before anybody changes it."""
    built = config.build(specs, device="meta")
    return {name: _Usual.of(module) for name, module in built.named_modules()}


def _strangers(lm: LM) -> Iterator[str]:
    """Give modules that do more, or hold other numbers, than native code would read of them."""
    built = _as_built(lm.config, tuple(lm.specs))
    for name, module in lm.named_modules():
        usual = built.get(name)
        packed = type(module) in PACKED and usual is not None and usual.kind in MAPS
        if not packed and (usual is None or type(module) is not usual.kind):
            yield f"{name} is a {type(module).__name__}, which the model was not built with"
        elif told := _changed(module, usual):
            yield f"{name} {told}"
        if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
            yield f"{name} has hooks, which would not be called"
        held = [*module.parameters(recurse=False), *(module.buffers() if packed else ())]
        for tensor in held:
            if tensor.device.type != "cpu":
                yield f"{name} lies on {tensor.device}"
            if not packed and tensor.dtype not in KINDS and not isinstance(module, ValueMap):
                yield f"{name} is {tensor.dtype}; kernels read float32, float16 and bfloat16"


def _changed(module: nn.Module, usual: _Usual) -> str:
    """Return what a module of the right class is that the one in its place was not, or ""."""
    if isinstance(module, Packed):
        told = module.told()  # refuses buffers that do not belong together
        shape = (module.outputs, module.inputs) if told is None else (told.rows, told.columns)
        return "" if shape == usual.shapes["weight"] else f"is a matrix of {list(shape)}"
    now = _Usual.of(module)
    if now.told != usual.told and not isinstance(module, Dropout):  # which is off in every step
        return f"is {type(module).__name__}({now.told}), not ({usual.told})"
    for name, shape in now.shapes.items():
        if shape != usual.shapes.get(name):
            return f"has a {name} of {list(shape)}, not of its config"
    return ""


def seen_of(pattern: Pattern) -> tuple[int | None, int]:
    """Return how many last positions a query sees, None = all, and how many first ones beside.

    Raises:
        ConfigError: for a pattern of another form.

    Example:
        >>> seen_of(Window(8) & Causal()), seen_of((Window(8) | Global(2)) & Causal())
        ((8, 0), (8, 2))
    """
    parts = pattern.parts if isinstance(pattern, And) else ()
    near = [part for part in parts if not isinstance(part, Causal)]
    if len(near) != 1 or len(near) == len(parts) or not isinstance(near[0], Or):
        return window_of(pattern), 0
    windows = [part.size for part in near[0].parts if isinstance(part, Window)]
    hubs = [part.tokens for part in near[0].parts if isinstance(part, Global)]
    if not windows or not hubs or len(windows) + len(hubs) < len(near[0].parts):
        return window_of(pattern), 0
    return max(windows), max(hubs)


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
