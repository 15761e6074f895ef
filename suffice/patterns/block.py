"""Any pattern on the level of blocks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from suffice.errors import ConfigError
from suffice.patterns.base import Pattern
from suffice.patterns.window import Window


@dataclass(frozen=True)
class Block(Pattern):
    """Query block q // size sees key block k // size where `over` lets it.

    Over Window(1) it is block-diagonal: each block by itself. Positions inside one block are
    alike, so ops compute whole blocks and waste nothing; for sizes near 64 that is how sparse
    patterns are fastest. A causal `over` still lets a query see the rest of its own block: write
    `& Causal()` outside.

    Args:
        size: positions of a block, at least 1; the last one may be shorter.
        over: the pattern of blocks.

    Raises:
        ConfigError: for a size below 1, or an `over` that is no pattern.

    Cost: size^2 times the pairs of `over`.
    Example:
        >>> Block(2).mask(4, 4).int().tolist()
        [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]

    Source: Child et al. 2019, arXiv:1904.10509, section 4.2, A^(1) of fixed attention
        (block-diagonal); Zaheer et al. 2020, arXiv:2007.14062, appendix D (any pattern of blocks).
        No difference.
    """

    size: int
    over: Pattern = Window(1)

    def __post_init__(self) -> None:
        if not isinstance(self.over, Pattern):
            raise ConfigError(
                f"Block(over={self.over!r}) is no pattern of blocks; give an instance such as "
                "Window(1)."
            )
        super().__post_init__()
        if self.size < 1:
            raise ConfigError(f"Block(size={self.size}) holds no position; give at least 1.")

    @property
    def reach(self) -> int | None:  # type: ignore[override]
        """That of the pattern of blocks, in positions."""
        return None if self.over.reach is None else self.over.reach * self.size

    @property
    def dense(self) -> bool:  # type: ignore[override]
        """True if nearly every block is computed."""
        return self.over.dense

    @property
    def crosses(self) -> bool:  # type: ignore[override]
        """True if the pattern of blocks means something between two sequences."""
        return self.over.crosses

    @property
    def max_length(self) -> int | None:  # type: ignore[override]
        """The positions of as many blocks as `over` can serve."""
        return None if self.over.max_length is None else self.size * self.over.max_length

    @property
    def heads(self) -> int | None:  # type: ignore[override]
        """The heads of `over`."""
        return self.over.heads

    def of_heads(self, num_heads: int) -> tuple[Pattern, ...]:
        """Return the blocks of each head of `over`."""
        return tuple(Block(self.size, over) for over in self.over.of_heads(num_heads))

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return what `over` allows the blocks of the positions."""
        return self.over.allowed(q_positions // self.size, k_positions // self.size)

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        """Return what `over` knows of the blocks that the rectangles touch."""
        corners = (q_first, q_last, k_first, k_last)
        return self.over.bounds(*(corner // self.size for corner in corners))

    @classmethod
    def samples(cls) -> tuple[Pattern, ...]:
        """Return pairs, and pairs beside a first pair that is a hub."""
        return (cls(2), cls(2, cls.table["Global"](1) | Window(1)))
