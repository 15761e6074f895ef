"""The computation of a layer as a small closed record, for other implementations of it.

Native decoding, exports, converters and calculators match on these records and refuse None and
unknown records, so that a new axis value is refused until it is implemented there.

Letters: H query heads, G key/value heads, D key width, E value width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suffice.combine import Concat, Differential, Gated
from suffice.encoders import (
    MLA,
    Efficient,
    HeadLayerNorm,
    HeadRMS,
    Latent,
    NoNorm,
    Optimised,
    ProjectionRMS,
    Standard,
)
from suffice.kernels import Decayed, Delta, Elu, Favor, Rfa, Softmax
from suffice.memory.past import Infini, NoPast
from suffice.mixing import (
    Alignment,
    BandedAlignment,
    BlockAlignment,
    LowRank,
    NoMixing,
    ToeplitzAlignment,
)
from suffice.positions import Alibi, NoPosition, Rope

if TYPE_CHECKING:
    from suffice.encoders import Norm
    from suffice.kernels import Kernel, Recurrent
    from suffice.mixing import Mixing
    from suffice.patterns import Pattern
    from suffice.patterns.base import Band
    from suffice.utils.protocols import SpecLike
    from suffice.utils.records import Axis

MAP, COLUMNS, KEYS = "map", "columns", "keys"

KNOWN: dict[str, tuple[type[Axis], ...]] = {
    "encoder": (Standard, Optimised, Efficient, Latent, MLA),
    "mixing": (
        NoMixing,
        Alignment,
        BandedAlignment,
        BlockAlignment,
        ToeplitzAlignment,
        LowRank,
    ),
    "kernel": (Softmax, Elu, Favor, Rfa, Decayed, Delta),
    "norm": (NoNorm, HeadRMS, HeadLayerNorm, ProjectionRMS),
    "position": (NoPosition, Rope, Alibi),
    "past": (NoPast, Infini),
    "combine": (Concat, Differential),
}
"""The values that the records below can express; a subclass of one is another value."""

UNWRITTEN = (NoMixing, Softmax, NoNorm, NoPosition, NoPast, Concat)
"""The values that no field of a record holds; `_record` writes all others into one."""

KNOWN_OF_RECURRENCES = KNOWN | {"combine": (Concat, Gated)}


@dataclass(frozen=True, kw_only=True)
class _Heads:
    """The fields of every record; None: the layer has none."""

    heads: int  # H
    kv_heads: int  # G; query head h reads key/value head h // (H / G)
    key_width: int  # D
    value_width: int  # E
    scale: float  # of the query-key products
    pattern: Pattern
    band: Band | None  # the pattern as a band of distances with sinks
    rotary: Rope | None
    bias: bool  # of the maps
    dropout: float  # of weights while training


@dataclass(frozen=True, kw_only=True)
class DenseSoftmax(_Heads):
    """softmax(scale q k + slopes) v of single linear maps, heads concatenated, then W_O."""

    keys: str  # "map" (W_K x) or "columns" (of x)
    values: str  # "map" (W_V x), "columns" (of x) or "keys" (W_K x before rotation)
    qk_norm: Norm | None  # before rotation
    alibi: Alibi | None
    mixing: Mixing | None  # of values along the sequence
    infini: Infini | None  # memory of earlier segments


@dataclass(frozen=True, kw_only=True)
class BoundedSoftmax(DenseSoftmax):
    """`DenseSoftmax` with a logit of no key for each head, or with capped products, or both."""

    sink: bool
    cap: float | None  # products s become cap * tanh(s / cap), before biases


@dataclass(frozen=True, kw_only=True)
class DifferentialSoftmax(DenseSoftmax):
    """Pairs of softmaxes over shared values, subtracted and normalised; H and G count pairs."""

    difference: Differential


@dataclass(frozen=True, kw_only=True)
class SharedSoftmax(DenseSoftmax):
    """`DenseSoftmax` of queries alone: keys and values are those that another layer caches."""

    shares: int  # number of that layer in the model


@dataclass(frozen=True, kw_only=True)
class LatentSoftmax(_Heads):
    """Softmax attention whose keys and values are made of a latent and a shared rotary key."""

    latent: MLA


@dataclass(frozen=True, kw_only=True)
class FeatureSum(_Heads):
    """Sums of features in place of weights of pairs; fields as of `DenseSoftmax`."""

    kernel: Kernel
    keys: str
    values: str
    qk_norm: Norm | None
    mixing: Mixing | None


@dataclass(frozen=True, kw_only=True)
class RecurrentSum(_Heads):
    """A state that decays or is corrected from token to token; fields as of `DenseSoftmax`."""

    kernel: Recurrent
    keys: str
    values: str
    qk_norm: Norm | None
    gate: Gated | None  # of the heads' outputs; None: they are concatenated as they are


Lowered = (
    DenseSoftmax
    | BoundedSoftmax
    | DifferentialSoftmax
    | SharedSoftmax
    | LatentSoftmax
    | FeatureSum
    | RecurrentSum
)


def lower(spec: SpecLike) -> Lowered | None:
    """Return the record that describes a layer's computation; None if no record fits."""
    record = _record(spec)
    if record is None:
        return None
    fields = vars(record).values()
    values = [getattr(spec, axis) for axis in KNOWN if axis != "encoder"]
    values = [value for value in values if type(value) not in UNWRITTEN]
    written = all(any(value is field for field in fields) for value in values)
    return record if written else None


def _record(spec: SpecLike) -> Lowered | None:
    plain = type(spec.kernel) is not Softmax or spec.kernel.plain
    if any(_unknown(spec)) or not (plain or _bounds_alone(spec)):
        return None
    rotary = spec.position if type(spec.position) is Rope else None
    heads = {
        "heads": spec.num_heads,
        "kv_heads": spec.kv_heads,
        "key_width": spec.head_width,
        "value_width": spec.value_width,
        "scale": spec.score_scale,
        "pattern": spec.pattern,
        "band": spec.pattern.band(),
        "rotary": rotary,
        "bias": spec.bias,
        "dropout": spec.dropout,
    }
    if type(spec.encoder) is MLA:
        return None if spec.position.biases else LatentSoftmax(**heads, latent=spec.encoder)
    encoder = spec.encoder
    learned = MAP if encoder.learns_values else COLUMNS
    heads |= {
        "keys": MAP if encoder.learns_keys else COLUMNS,
        "values": KEYS if encoder.shares and encoder.learns_keys else learned,
        "qk_norm": spec.norm if spec.norm.norms else None,
    }
    if spec.lane == "recurrence":
        gate = None if type(spec.combine) is Concat else spec.combine
        return RecurrentSum(**heads, kernel=spec.kernel, gate=gate)
    heads["mixing"] = spec.beyond_pairs.get("mixing")
    if spec.lane != "pairs":
        return FeatureSum(**heads, kernel=spec.kernel)
    heads |= {
        "alibi": spec.position if spec.position.biases else None,
        "infini": spec.beyond_pairs.get("past"),
    }
    if type(spec.combine) is Differential:
        if spec.shares is not None:
            return None
        return DifferentialSoftmax(**heads, difference=spec.combine)
    if spec.shares is not None:
        return SharedSoftmax(**heads, shares=spec.shares)
    if not plain:
        return BoundedSoftmax(**heads, sink=spec.kernel.sink, cap=spec.kernel.cap)
    return DenseSoftmax(**heads)


def _bounds_alone(spec: SpecLike) -> bool:
    """Return whether sinks and caps are all that a layer adds to dense softmax attention."""
    apart = type(spec.encoder) is MLA or type(spec.combine) is Differential
    return not apart and not spec.beyond_pairs.keys() & {"past", "shares"}


def _unknown(spec: SpecLike) -> Iterator[str]:
    for axis, known in (KNOWN if spec.lane != "recurrence" else KNOWN_OF_RECURRENCES).items():
        value = getattr(spec, axis)
        if type(value) not in known:
            yield axis


def not_dense(spec: SpecLike) -> str | None:
    """Return the field whose value keeps a layer from being a `DenseSoftmax`; None if it is one."""
    lowered = spec.lower()
    if lowered is None:
        bounded = type(spec.kernel) is Softmax and not spec.kernel.plain
        others = "encoder" if spec.shares is None else "shares"
        return next(_unknown(spec), "kernel" if bounded else others)
    if isinstance(lowered, SharedSoftmax):
        return "shares"
    axes = {
        FeatureSum: "kernel",
        RecurrentSum: "kernel",
        BoundedSoftmax: "kernel",
        LatentSoftmax: "encoder",
        DifferentialSoftmax: "combine",
    }
    return axes.get(type(lowered))
