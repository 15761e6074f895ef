"""A query sees neighbours with gaps between them."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from torch import Tensor

from suffice.errors import ConfigError
from suffice.patterns.base import Pattern
from suffice.patterns.rectangle import judged


@dataclass(frozen=True)
class Dilated(Pattern):
    """A query sees `size` keys on either side, `dilation` apart: |q - k| = 0, d, ..., (size - 1) d.

    The reach of a window of (size - 1) d + 1 at the cost of one of `size`; what lies in the gaps
    is left to other heads or layers. Dilated(size, 1) is Window(size).

    Args:
        size: keys on one side, the query's own included, at least 1.
        dilation: distance between them, positions, at least 1.

    Raises:
        ConfigError: for a size or a dilation below 1.

    Cost: at most T (2 size - 1) visible pairs, causal T size.
    Example:
        >>> Dilated(2, 2).mask(1, 5).int().tolist(), Dilated(2, 2).mask(4, 4)[0].int().tolist()
        ([[0, 0, 1, 0, 1]], [1, 0, 1, 0])

    Source: Beltagy et al. 2020, arXiv:2004.05150, section 3.1, "dilated sliding window". No
        difference.
    """

    size: int
    dilation: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 1 or self.dilation < 1:
            raise ConfigError(
                f"Dilated(size={self.size}, dilation={self.dilation}) holds no key; give at least "
                "1 of each: size=1 is the query's own key, dilation=1 a window without gaps."
            )

    relative = True

    @property
    def reach(self) -> int:  # type: ignore[override]
        """To the furthest of the positions, `dilation` apart."""
        return self.farthest + 1

    @property
    def spacing(self) -> int:  # type: ignore[override]
        """The dilation."""
        return self.dilation

    @property
    def farthest(self) -> int:
        """The largest distance."""
        return (self.size - 1) * self.dilation

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return True at the distances of the pattern."""
        distance = (q_positions - k_positions).abs()
        return (distance <= self.farthest) & (distance % self.dilation == 0)

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        """Return what is known of rectangles: the distances they hold decide."""
        low, high = q_first - k_last, q_last - k_first
        inside = (low >= -self.farthest) & (high <= self.farthest)
        nearest = high.clamp(max=self.farthest)
        return judged(
            none=nearest - nearest % self.dilation < low.clamp(min=-self.farthest),
            every=inside & ((low % self.dilation == 0) & (low == high) | (self.dilation == 1)),
        )

    def every(self, step: int, first: int) -> Pattern:  # noqa: ARG002 - distances alone matter
        """Return the pattern that counts steps."""
        dilation = self.dilation // gcd(self.dilation, step)
        return Dilated(self.farthest // step // dilation + 1, dilation)

    @classmethod
    def samples(cls) -> tuple[Pattern, ...]:
        """Return every second key."""
        return (cls(2, 2),)
