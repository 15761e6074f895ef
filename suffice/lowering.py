"""What a layer computes, as a small closed record for programs that compute it in another way.

Native decoding, exports, converters and calculators match on these records and refuse None, and
any record they do not know: a value added to an axis is then refused until somebody taught them.

Letters: H query heads, G key/value heads, D key width, E value width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from suffice.combine import Concat, Differential
from suffice.encoders import MLA, Efficient, HeadRMS, Latent, NoNorm, Optimised, Standard
from suffice.kernels import Elu, Favor, Rfa, Softmax
from suffice.mixing import (
    Alignment,
    BandedAlignment,
    BlockAlignment,
    LowRank,
    NoMixing,
    ToeplitzAlignment,
)
from suffice.past import Infini, NoPast
from suffice.positions import Alibi, NoPosition, Rope

if TYPE_CHECKING:
    from suffice.kernels import Kernel
    from suffice.mixing import Mixing
    from suffice.patterns import Pattern
    from suffice.patterns.base import Band
    from suffice.records import Axis
    from suffice.spec import AttentionSpec

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
    "kernel": (Softmax, Elu, Favor, Rfa),
    "norm": (NoNorm, HeadRMS),
    "position": (NoPosition, Rope, Alibi),
    "past": (NoPast, Infini),
    "combine": (Concat, Differential),
}
"""The values that the records below can say; a subclass of one is another value."""


@dataclass(frozen=True, kw_only=True)
class _Heads:
    """What every record says.

    Args:
        heads: H.
        kv_heads: G; query head h reads key/value head h // (H / G).
        key_width: D.
        value_width: E.
        scale: factor of the query-key products.
        pattern: which keys a query may see.
        band: the same as a band of distances with sinks; None = it is none.
        rotary: rotates queries and keys; None = nothing is rotated.
        bias: whether the maps have biases.
        dropout: of weights while training.
    """

    heads: int
    kv_heads: int
    key_width: int
    value_width: int
    scale: float
    pattern: Pattern
    band: Band | None
    rotary: Rope | None
    bias: bool
    dropout: float


@dataclass(frozen=True, kw_only=True)
class DenseSoftmax(_Heads):
    """softmax(scale q k + slopes) v of single linear maps, heads concatenated, then W_O.

    Args:
        keys: where keys come from: "map" (W_K x) or "columns" (of x).
        values: "map" (W_V x), "columns" (of x) or "keys" (what W_K gives, before rotation).
        qk_norm: of queries and keys before rotation; None = there is none.
        alibi: biases of distances; None = there are none.
        mixing: of values along the sequence; None = there is none.
        infini: memory of earlier segments; None = there is none.
    """

    keys: str
    values: str
    qk_norm: HeadRMS | None
    alibi: Alibi | None
    mixing: Mixing | None
    infini: Infini | None


@dataclass(frozen=True, kw_only=True)
class DifferentialSoftmax(DenseSoftmax):
    """Pairs of softmaxes over shared values, subtracted and normalised, then W_O.

    H and G count pairs of maps.

    Args:
        difference: how they are subtracted.
    """

    difference: Differential


@dataclass(frozen=True, kw_only=True)
class LatentSoftmax(_Heads):
    """Softmax attention whose keys and values are made of a latent and a shared rotary key.

    Args:
        latent: widths of the latents and of the rotary key.
    """

    latent: MLA


@dataclass(frozen=True, kw_only=True)
class FeatureSum(_Heads):
    """Sums of features in place of weights of pairs, heads concatenated, then W_O.

    Args:
        kernel: the features.
        keys: as of `DenseSoftmax`.
        values: as of `DenseSoftmax`.
        qk_norm: as of `DenseSoftmax`.
        mixing: as of `DenseSoftmax`.
    """

    kernel: Kernel
    keys: str
    values: str
    qk_norm: HeadRMS | None
    mixing: Mixing | None


Lowered = DenseSoftmax | DifferentialSoftmax | LatentSoftmax | FeatureSum


def lower(spec: AttentionSpec) -> Lowered | None:
    """Return what a layer computes; None if no record says it all."""
    if any(type(getattr(spec, axis)) not in known for axis, known in KNOWN.items()):
        return None
    rotary = spec.position if isinstance(spec.position, Rope) else None
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
    if isinstance(spec.encoder, MLA):
        return None if spec.position.biases else LatentSoftmax(**heads, latent=spec.encoder)
    encoder = spec.encoder
    learned = MAP if encoder.learns_values else COLUMNS
    heads |= {
        "keys": MAP if encoder.learns_keys else COLUMNS,
        "values": KEYS if encoder.shares and encoder.learns_keys else learned,
        "qk_norm": spec.norm if spec.norm.norms else None,
        "mixing": spec.mixing if spec.mixing.mixes else None,
    }
    if not spec.kernel.weighs_pairs:
        return FeatureSum(**heads, kernel=spec.kernel)
    heads |= {
        "alibi": spec.position if spec.position.biases else None,
        "infini": spec.past if spec.past.reads else None,
    }
    if isinstance(spec.combine, Differential):
        return DifferentialSoftmax(**heads, difference=spec.combine)
    return DenseSoftmax(**heads)


def not_dense(spec: AttentionSpec) -> str | None:
    """Return the axis whose value keeps a layer from being a `DenseSoftmax`; None if it is one."""
    lowered = spec.lower()
    if lowered is None:
        custom = (axis for axis, known in KNOWN.items() if type(getattr(spec, axis)) not in known)
        return next(custom, "encoder")
    axes = {FeatureSum: "kernel", LatentSoftmax: "encoder", DifferentialSoftmax: "combine"}
    return axes.get(type(lowered))
