"""Patterns of relative distance: full, causal, and (dilated) sliding windows."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.patterns.base import ALL, PAST, Band, Pattern, classify
from suffice.utils.records import derived


@dataclass(frozen=True)
class Full(Pattern):
    """Every query sees every key, before and after itself.

    The pattern of encoders and of cross-attention.

    Cost: T * S pairs.
    Example:
        >>> Full().mask(1, 3).tolist()
        [[True, True, True]]

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2. No difference.
    """

    dense = True
    relative = True
    crosses = True

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return True everywhere."""
        shape = torch.broadcast_shapes(q_positions.shape, k_positions.shape)
        return q_positions.new_ones((), dtype=torch.bool).expand(shape)

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        """Return 2 everywhere."""
        shape = torch.broadcast_shapes(q_first.shape, q_last.shape, k_first.shape, k_last.shape)
        return torch.full(shape, 2, dtype=torch.int8, device=q_first.device)

    def every(self, step: int, first: int) -> Pattern:  # noqa: ARG002 - no position matters
        """Return Full."""
        return self

    def band(self) -> Band:
        """Return the band without ends."""
        return ALL

    def pairs(self, queries: int, keys: int) -> int:
        """Count T * S pairs."""
        return queries * keys


@dataclass(frozen=True)
class Causal(Pattern):
    """A query sees the keys at its own position and before.

    The pattern of language models, alone or combined with another: `Window(256) & Causal()`. It
    speaks of positions, not of indices: one new token after 8 cached ones stands at position 8 and
    sees all nine.

    Cost: T * (T + 1) / 2 visible pairs for T = S; dense ops compute all T * S.
    Example:
        >>> Causal().mask(2, 3).int().tolist()
        [[1, 1, 0], [1, 1, 1]]

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3. No difference.
    """

    causal = True
    relative = True
    dense = True

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return True where the key is not after the query."""
        return k_positions <= q_positions

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        """Classify rectangles: their two far corners decide."""
        return classify(none=k_first > q_last, every=k_last <= q_first)

    def every(self, step: int, first: int) -> Pattern:  # noqa: ARG002 - the order stays
        """Return Causal: thinning keeps the order."""
        return self

    def band(self) -> Band:
        """Return the band that ends at the query."""
        return PAST

    def pairs(self, queries: int, keys: int) -> int:
        """Count the pairs: query i of T sees S - T + i + 1 keys, none if that is negative."""
        first = max(0, queries - keys)  # earlier rows stand before the first key
        rows = queries - first
        return rows * (2 * (keys - queries + first + 1) + rows - 1) // 2


@dataclass(frozen=True)
class Window(Pattern):
    """A query sees the keys at a distance below `size`: |q - k| < size.

    With `& Causal()` that is exactly the last `size` keys, its own included; without it, equally
    many after it as before it, 2 size - 1 in all. Depth widens what is seen: n causal layers reach
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

    Source: Beltagy et al. 2020, arXiv:2004.05150, section 3.1 (the paper's w = 2 size - 2 does
        not count the query); Jiang et al. 2023, arXiv:2310.06825, section 2 (causal, W = size).
    """

    size: int

    relative = True

    reach = derived(lambda self: self.size)

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
        """Classify rectangles: their nearest and farthest corners decide."""
        low, high = q_first - k_last, q_last - k_first
        return classify(
            none=(low >= self.size) | (high <= -self.size),
            every=(low > -self.size) & (high < self.size),
        )

    def every(self, step: int, first: int) -> Pattern:  # noqa: ARG002 - distances alone matter
        """Return the window that counts steps."""
        return Window((self.size - 1) // step + 1)

    def band(self) -> Band:
        """Return size - 1 keys on either side."""
        return Band(self.size - 1, self.size - 1)

    @classmethod
    def samples(cls) -> tuple[Pattern, ...]:
        """Return a window of one neighbour on each side."""
        return (cls(2),)


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

    reach = derived(lambda self: self.farthest + 1)
    spacing = derived(lambda self: self.dilation)

    farthest = derived(lambda self: (self.size - 1) * self.dilation)

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return True at the distances of the pattern."""
        distance = (q_positions - k_positions).abs()
        return (distance <= self.farthest) & (distance % self.dilation == 0)

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        """Classify rectangles: the distances they hold decide."""
        low, high = q_first - k_last, q_last - k_first
        inside = (low >= -self.farthest) & (high <= self.farthest)
        nearest = high.clamp(max=self.farthest)
        return classify(
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
