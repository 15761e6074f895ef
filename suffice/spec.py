"""The composition of one attention layer, as data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from suffice.cost import Cost, count
from suffice.errors import ConfigError, unknown
from suffice.kernels import Kernel, Softmax
from suffice.legality import AXES, conflicts
from suffice.mixing import Mixing, NoMixing
from suffice.norms import NoNorm, Norm
from suffice.past import NoPast, Past
from suffice.patterns import Full, Pattern
from suffice.positions import NoPosition, Position
from suffice.projections import Projections, Standard, Widths


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """One attention layer: sizes, and one value on each axis.

    Every illegal combination is refused here, all reasons at once.

    Args:
        d_model: width of x and of the output, features.
        num_heads: query heads.
        num_kv_heads: key/value heads; None = num_heads (MHA), 1 = MQA, between = GQA. Query head
            h reads key/value head h // (num_heads / num_kv_heads).
        head_dim: width of a head; None = d_model / num_heads.
        d_memory: width of `memory` in cross-attention; None = d_model.
        pattern: which keys a query may see.
        projections: how x becomes queries, keys and values.
        mixing: what happens to the values along the sequence before the kernel.
        kernel: how products become weights.
        norm: what queries and keys are divided by, before positions turn them.
        position: how positions turn queries and keys.
        past: what is read of the past that the pattern leaves out.
        bias: whether the learned maps have biases.
        scale: factor of the products; None = 1 / sqrt(head_dim).
        dropout: probability of dropping a weight while training.

    Raises:
        ConfigError: naming every rule that is broken.

    Example:
        >>> spec = AttentionSpec(d_model=128, num_heads=4)
        >>> spec.cost(length=64).parameters
        66048
        >>> AttentionSpec.from_json(spec.to_json()) == spec
        True
    """

    d_model: int
    num_heads: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    d_memory: int | None = None
    pattern: Pattern = Full()
    projections: Projections = Standard()
    mixing: Mixing = NoMixing()
    kernel: Kernel = Softmax()
    norm: Norm = NoNorm()
    position: Position = NoPosition()
    past: Past = NoPast()
    bias: bool = True
    scale: float | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        broken = conflicts(self)
        if broken:
            raise ConfigError(" ".join(broken))

    @property
    def kv_heads(self) -> int:
        """Key/value heads, G."""
        return self.num_kv_heads or self.num_heads

    @property
    def head_width(self) -> int:
        """Features of one head, D."""
        return self.head_dim or self.d_model // self.num_heads

    @property
    def widths(self) -> Widths:
        """The widths of the four maps."""
        return Widths(
            d_model=self.d_model,
            d_memory=self.d_memory or self.d_model,
            q=self.num_heads * self.head_width,
            kv=self.kv_heads * self.head_width,
        )

    @property
    def one_tensor(self) -> bool:
        """True if keys and values, before any mixing, are one tensor."""
        apart = self.position.rotates or self.norm.norms
        return self.projections.shares and not apart

    @property
    def score_scale(self) -> float:
        """The factor of the query-key products."""
        return self.head_width**-0.5 if self.scale is None else self.scale

    @property
    def max_length(self) -> int | None:
        """The longest sequence of keys in tokens; None = any."""
        longest = (self.mixing.max_length, self.pattern.max_length)
        return min((n for n in longest if n is not None), default=None)

    def cost(self, length: int, memory_length: int | None = None) -> Cost:
        """Return what one sample costs in one forward.

        Args:
            length: positions of x, tokens.
            memory_length: positions of `memory` in cross-attention; None = self-attention.
        """
        return count(self, length, length if memory_length is None else memory_length)

    def to_json(self) -> dict[str, Any]:
        """Return the spec as plain data."""
        return {
            f.name: value.to_json()
            if (value := getattr(self, f.name)) and f.name in AXES
            else value
            for f in dataclasses.fields(self)
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> AttentionSpec:
        """Rebuild a spec from `to_json`'s data.

        Raises:
            ConfigError: for unknown fields, names or values.
        """
        if not isinstance(data, dict):
            raise ConfigError(f"a spec is stored as a dictionary of its fields, got {data!r}.")
        fields = {f.name for f in dataclasses.fields(cls)}
        for key in data:
            if key not in fields:
                raise unknown("field of AttentionSpec", key, fields)
        missing = {"d_model", "num_heads"} - data.keys()
        if missing:
            raise ConfigError(f"a stored spec needs {' and '.join(sorted(missing))}.")
        return cls(**{k: AXES[k].from_json(v) if k in AXES else v for k, v in data.items()})
