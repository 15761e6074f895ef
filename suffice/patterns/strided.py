"""A query sees every stride-th key."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from torch import Tensor

from suffice.errors import ConfigError
from suffice.patterns.base import Pattern
from suffice.patterns.rectangle import judged


@dataclass(frozen=True)
class Strided(Pattern):
    """A query sees the keys that lie a multiple of `stride` away: (q - k) mod stride = 0.

    Beside `Window(stride)` it reaches every position in two steps; for data with a period, such as
    the rows of an image.

    Args:
        stride: positions, at least 1; 1 sees everything.

    Raises:
        ConfigError: for a stride below 1.

    Cost: about T S / stride visible pairs.
    Example:
        >>> Strided(3).mask(2, 7).int().tolist()
        [[0, 0, 1, 0, 0, 1, 0], [1, 0, 0, 1, 0, 0, 1]]

    Source: Child et al. 2019, arXiv:1904.10509, section 4.2, A^(2) of strided attention. The paper
        is causal; without `& Causal()` ours sees both ways.
    """

    stride: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride < 1:
            raise ConfigError(
                f"Strided(stride={self.stride}) has no keys to step along; give at least 1, which "
                "sees everything."
            )

    relative = True

    @property
    def spacing(self) -> int:  # type: ignore[override]
        """The stride."""
        return self.stride

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return True where the distance is a multiple of the stride."""
        return (q_positions - k_positions) % self.stride == 0

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        """Return what is known of rectangles: the distances they hold decide."""
        low, high = q_first - k_last, q_last - k_first
        return judged(
            none=high - high % self.stride < low,
            every=(low % self.stride == 0) & (low == high) | (self.stride == 1),
        )

    def every(self, step: int, first: int) -> Pattern:  # noqa: ARG002 - distances alone matter
        """Return the pattern that counts steps."""
        return Strided(self.stride // gcd(self.stride, step))

    @classmethod
    def samples(cls) -> tuple[Pattern, ...]:
        """Return every second key."""
        return (cls(2),)
