"""The first tokens see everything and are seen by everything."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from suffice.errors import ConfigError
from suffice.patterns.base import Pattern
from suffice.patterns.rectangle import judged


@dataclass(frozen=True)
class Global(Pattern):
    """The first `tokens` positions see every key, and every query sees them: q < g or k < g.

    Hubs: beside a window they join any two positions in two steps. A class token, a question or a
    title stands there. Positions count within a document, so each packed document has hubs of its
    own.

    Args:
        tokens: positions, g, at least 1.

    Raises:
        ConfigError: for fewer than 1 token.

    Cost: g (T + S - g) visible pairs for T = S.
    Example:
        >>> Global(1).mask(3, 3).int().tolist()
        [[1, 1, 1], [1, 0, 0], [1, 0, 0]]

    Source: Beltagy et al. 2020, arXiv:2004.05150, section 3.1, "global attention". The paper gives
        these pairs linear maps of their own and lets any positions be global.
    """

    tokens: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens < 1:
            raise ConfigError(
                f"Global(tokens={self.tokens}) has no hub and allows nothing; give at least 1."
            )

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return True where the query or the key is one of the first tokens."""
        return (q_positions < self.tokens) | (k_positions < self.tokens)

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        """Return what is known of rectangles: inside the hubs' rows or columns, or outside both."""
        return judged(
            none=(q_first >= self.tokens) & (k_first >= self.tokens),
            every=(q_last < self.tokens) | (k_last < self.tokens),
        )

    @classmethod
    def samples(cls) -> tuple[Pattern, ...]:
        """Return one hub."""
        return (cls(1),)
