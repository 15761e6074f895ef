"""A query sees its neighbours."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from suffice.errors import ConfigError
from suffice.patterns.base import Pattern
from suffice.patterns.rectangle import judged


@dataclass(frozen=True)
class Window(Pattern):
    """A query sees the keys at a distance below `size`: |q - k| < size.

    With `& Causal()` that is exactly the last `size` keys, its own included; without, as many after
    it as before it, 2 size - 1 in all. Depth widens what is seen: n causal layers reach
    n (size - 1) positions back.

    Args:
        size: positions, at least 1.

    Raises:
        ConfigError: for a size below 1.

    Cost: at most T (2 size - 1) visible pairs, causal T size.
    Example:
        >>> from suffice.patterns import Causal
        >>> (Window(2) & Causal()).mask(3, 3).int().tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]

    Source: Beltagy et al. 2020, arXiv:2004.05150, section 3.1 (the paper's w = 2 size - 2 beside
        the query); Jiang et al. 2023, arXiv:2310.06825, section 2 (causal, W = size).
    """

    size: int

    relative = True

    @property
    def reach(self) -> int:  # type: ignore[override]
        """The size."""
        return self.size

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 1:
            raise ConfigError(
                f"Window(size={self.size}) holds no key; give at least 1, the query's own."
            )

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return True where the distance is below the size."""
        return (q_positions - k_positions).abs() < self.size

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        """Return what is known of rectangles: their nearest and farthest corners decide."""
        low, high = q_first - k_last, q_last - k_first
        return judged(
            none=(low >= self.size) | (high <= -self.size),
            every=(low > -self.size) & (high < self.size),
        )

    def every(self, step: int, first: int) -> Pattern:  # noqa: ARG002 - distances alone matter
        """Return the window that counts steps."""
        return Window((self.size - 1) // step + 1)

    @classmethod
    def samples(cls) -> tuple[Pattern, ...]:
        """Return a window of one neighbour on each side."""
        return (cls(2),)
