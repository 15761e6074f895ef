"""Patterns made of patterns: `a & b` and `a | b`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_, or_

from torch import Tensor

from suffice.errors import ConfigError
from suffice.patterns.base import Pattern
from suffice.patterns.causal import Causal
from suffice.patterns.full import Full


@dataclass(frozen=True)
class _Combined(Pattern):
    parts: tuple[Pattern, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.parts) < 2 or not all(isinstance(part, Pattern) for part in self.parts):
            raise ConfigError(
                f"{type(self).__name__} combines two or more patterns, got {self.parts!r}."
            )


@dataclass(frozen=True)
class And(_Combined):
    """A pair is allowed if every part allows it; written `a & b`.

    Example:
        >>> (Full() & Causal()).mask(2, 2).tolist()
        [[True, False], [True, True]]
    """

    @property
    def causal(self) -> bool:  # type: ignore[override]
        """True if one part is causal: it removes every later key."""
        return any(part.causal for part in self.parts)

    @property
    def crosses(self) -> bool:  # type: ignore[override]
        """True if every part means something between two sequences."""
        return all(part.crosses for part in self.parts)

    @property
    def dense(self) -> bool:  # type: ignore[override]
        """True if no part leaves whole regions out."""
        return all(part.dense for part in self.parts)

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return the conjunction of the parts."""
        return reduce(and_, (part.allowed(q_positions, k_positions) for part in self.parts))

    @classmethod
    def samples(cls) -> tuple[Pattern, ...]:
        """Return Full & Causal, which equals Causal."""
        return (cls((Full(), Causal())),)


@dataclass(frozen=True)
class Or(_Combined):
    """A pair is allowed if any part allows it; written `a | b`.

    Example:
        >>> (Full() | Causal()).mask(2, 2).tolist()
        [[True, True], [True, True]]
    """

    @property
    def causal(self) -> bool:  # type: ignore[override]
        """True if every part is causal."""
        return all(part.causal for part in self.parts)

    @property
    def crosses(self) -> bool:  # type: ignore[override]
        """True if every part means something between two sequences."""
        return all(part.crosses for part in self.parts)

    @property
    def dense(self) -> bool:  # type: ignore[override]
        """True if one part is computed whole anyway."""
        return any(part.dense for part in self.parts)

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return the disjunction of the parts."""
        return reduce(or_, (part.allowed(q_positions, k_positions) for part in self.parts))

    @classmethod
    def samples(cls) -> tuple[Pattern, ...]:
        """Return Causal | Full, which equals Full."""
        return (cls((Causal(), Full())),)
