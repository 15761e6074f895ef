"""A language model as the calculator knows it: sizes, one attention, and every so many layers full.

It is smaller than a list of specs, so that a form can hold it, and says no more than they do.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any

from suffice.errors import ConfigError, unknown
from suffice.fields import check_fields
from suffice.kernels import Elu, Kernel, Softmax
from suffice.mixing import Alignment, Mixing, NoMixing, ToeplitzAlignment
from suffice.patterns import Causal, Pattern, Window
from suffice.positions import NoPosition, Rope
from suffice.projections import Efficient, Latent, Optimised, Projections, Standard
from suffice.spec import AttentionSpec

PROJECTIONS: dict[str, Projections] = {
    type(value).__name__: value for value in (Standard(), Optimised(), Efficient(), Latent())
}
KERNELS: dict[str, Kernel] = {type(value).__name__: value for value in (Softmax(), Elu())}
MIXINGS: dict[str, type[Mixing]] = {
    value.__name__: value for value in (NoMixing, Alignment, ToeplitzAlignment)
}
BITS = (32, 16, 8, 4)
LARGEST = 1 << 32  # of any size: what follows from it is still exact in a page


@dataclass(frozen=True, kw_only=True)
class Composition:
    """The sizes of a decoder and what its attention is made of.

    Args:
        name: for people.
        d_model: features.
        layers: blocks.
        num_heads: query heads.
        num_kv_heads: key/value heads; 0 = as many as query heads.
        head_dim: width of a head; 0 = d_model / num_heads.
        projections: Standard, Optimised, Efficient or Latent.
        kernel: Softmax, or Elu for sums of features (linear attention).
        mixing: NoMixing, Alignment (Super Attention) or ToeplitzAlignment.
        rotary: positions turn queries and keys.
        mixing_size: the longest input of an Alignment, the width of a ToeplitzAlignment.
        window: latest positions that are seen and kept; 0 = all.
        sinks: first positions that are kept beside a window.
        full_every: every so many layers is full softmax attention instead; 0 = none.
        bias: biases on the maps of the attention.
        vocabulary: tokens; 0 = no embedding and no head.
        mlp_width: features inside a block's MLP; 0 = no MLP.
        gated: a third map in the MLP (SwiGLU, GeGLU).
        mlp_bias: biases on its maps.
        tied: the head's weights are the tokens' rows.
        positions: rows of learned positions.
        norms: norms in a block; one more stands before the head.
        norm_bias: biases on them.
        qk_norm: norms of queries and keys, one number for each feature of a head.
        batch: texts at once.
        chunk: tokens of a text that are read at once; 0 = all of them.
        weight_bits: of a weight: 32, 16, 8 or 4.
        state_bits: of a number that is kept: 32, 16, 8 or 4.

    Raises:
        ConfigError: for sizes, names or bits that are not legal.

    Example:
        >>> Composition(name="small", d_model=64, num_heads=4, layers=2).specs()[0].kv_heads
        4
    """

    name: str = "model"
    d_model: int = 2048
    layers: int = 32
    num_heads: int = 32
    num_kv_heads: int = 0
    head_dim: int = 0
    projections: str = "Standard"
    kernel: str = "Softmax"
    mixing: str = "NoMixing"
    mixing_size: int = 0
    rotary: bool = False
    window: int = 0
    sinks: int = 0
    full_every: int = 0
    bias: bool = False
    vocabulary: int = 0
    mlp_width: int = 0
    gated: bool = True
    mlp_bias: bool = False
    tied: bool = False
    positions: int = 0
    norms: int = 2
    norm_bias: bool = False
    qk_norm: bool = False
    batch: int = 1
    chunk: int = 512
    weight_bits: int = 16
    state_bits: int = 16

    def __post_init__(self) -> None:
        check_fields(self)
        self._check_sizes()
        for field, legal in (
            ("projections", PROJECTIONS),
            ("kernel", KERNELS),
            ("mixing", MIXINGS),
        ):
            if getattr(self, field) not in legal:
                raise unknown(field, getattr(self, field), legal)
        if wrong := [n for n in ("weight_bits", "state_bits") if getattr(self, n) not in BITS]:
            raise ConfigError(f"{wrong[0]}={getattr(self, wrong[0])}: give 32, 16, 8 or 4.")
        self._check_rules()
        self.specs()

    def _check_sizes(self) -> None:
        """Refuse sizes below their least, or too large to count with."""
        least = dict.fromkeys(("d_model", "layers", "num_heads", "batch"), 1)
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is int and not least.get(field.name, 0) <= value <= LARGEST:
                raise ConfigError(
                    f"{field.name}={value}: give {least.get(field.name, 0)} to {LARGEST:,}."
                )

    def _check_rules(self) -> None:
        """Refuse what two fields say together."""
        if (self.mixing == "NoMixing") != (self.mixing_size == 0):
            raise ConfigError(
                f"mixing={self.mixing} with mixing_size={self.mixing_size}: give a size of at "
                "least 1 to Alignment and ToeplitzAlignment, and 0 to NoMixing."
            )
        if self.sinks and not self.window:
            raise ConfigError(
                f"sinks={self.sinks} without a window: everything is kept already; give a window."
            )
        if self.window and self.mixing == "Alignment":
            raise ConfigError(
                f"window={self.window} with Alignment, which reads all earlier values: nothing "
                "would be forgotten; use ToeplitzAlignment, or no window."
            )

    def spec(self, full: bool = False) -> AttentionSpec:
        """Return the spec of a layer, or of one of those that are full instead."""
        return _spec(self, full)

    def specs(self) -> list[AttentionSpec]:
        """Return the spec of each block."""
        most, full = self.spec(), self.spec(full=True)
        return [full if self.is_full(layer) else most for layer in range(self.layers)]

    def is_full(self, layer: int) -> bool:
        """Return whether a layer, from 0, is one of those that are full instead."""
        return self.full_every > 0 and (layer + 1) % self.full_every == 0

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Composition:
        """Rebuild a composition from plain data; fields left out are as by default.

        Raises:
            ConfigError: for data that is no dictionary, unknown fields, or values not legal.
        """
        if not isinstance(data, dict):
            raise ConfigError(f"a composition is a dictionary of its fields, got {data!r:.80}.")
        names = {field.name for field in fields(cls)}
        for key in data:
            if key not in names:
                raise unknown("field of a composition", key, names)
        return cls(**data)


@lru_cache(maxsize=256)
def _spec(model: Composition, full: bool) -> AttentionSpec:
    """Return the spec of a layer; a page asks for the same one at many lengths."""
    pattern: Pattern = Causal()
    if model.window and not full:
        pattern = Window(model.window) & Causal()
    mixed = not full and model.mixing_size > 0
    return AttentionSpec(
        d_model=model.d_model,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads or None,
        head_dim=model.head_dim or None,
        pattern=pattern,
        projections=PROJECTIONS[model.projections],
        mixing=MIXINGS[model.mixing](model.mixing_size) if mixed else NoMixing(),
        kernel=Softmax() if full else KERNELS[model.kernel],
        position=Rope() if model.rotary else NoPosition(),
        bias=model.bias,
    )
