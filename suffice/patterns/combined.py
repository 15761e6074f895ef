"""Patterns made of patterns: `a & b` and `a | b`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import lcm
from operator import and_, or_

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.patterns.base import Pattern
from suffice.patterns.causal import Causal
from suffice.patterns.full import Full


def farthest(parts: tuple[Pattern, ...]) -> int | None:
    """Return the longest reach of some patterns; None if one has no bound."""
    reaches = [part.reach for part in parts]
    return None if None in reaches else max(reaches)  # type: ignore[type-var]


@dataclass(frozen=True)
class _Combined(Pattern):
    parts: tuple[Pattern, ...]

    def __post_init__(self) -> None:
        several = isinstance(self.parts, tuple) and len(self.parts) > 1
        if not several or not all(isinstance(part, Pattern) for part in self.parts):
            raise ConfigError(
                f"{type(self).__name__} combines two or more patterns, got {self.parts!r}."
            )
        super().__post_init__()
        heads = {part.heads for part in self.parts} - {None}
        if len(heads) > 1:
            told = " and ".join(map(str, sorted(heads)))  # type: ignore[type-var]
            raise ConfigError(
                f"{type(self).__name__} combines patterns made for {told} heads; give all the "
                "same number of heads."
            )

    @property
    def crosses(self) -> bool:  # type: ignore[override]
        """True if every part means something between two sequences."""
        return all(part.crosses for part in self.parts)

    @property
    def max_length(self) -> int | None:  # type: ignore[override]
        """The smallest one of the parts."""
        return min((m for part in self.parts if (m := part.max_length)), default=None)

    @property
    def relative(self) -> bool:  # type: ignore[override]
        """True if all parts are."""
        return all(part.relative for part in self.parts)

    @property
    def heads(self) -> int | None:  # type: ignore[override]
        """The number of heads that a part is made for."""
        return next((part.heads for part in self.parts if part.heads), None)

    def of_heads(self, num_heads: int) -> tuple[Pattern, ...]:
        """Return the combination of each head."""
        if self.heads is None:
            return super().of_heads(num_heads)
        of_parts = [part.of_heads(num_heads) for part in self.parts]
        return tuple(type(self)(parts) for parts in zip(*of_parts, strict=True))

    def every(self, step: int, first: int) -> Pattern:
        """Return the same combination of the parts."""
        return type(self)(tuple(part.every(step, first) for part in self.parts))


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
    def dense(self) -> bool:  # type: ignore[override]
        """True if no part leaves whole regions out."""
        return all(part.dense for part in self.parts)

    @property
    def reach(self) -> int | None:  # type: ignore[override]
        """The shortest reach of a part."""
        return min((r for part in self.parts if (r := part.reach)), default=None)

    @property
    def spacing(self) -> int:  # type: ignore[override]
        """The least common multiple of the parts' spacings."""
        return lcm(*(part.spacing for part in self.parts))

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return the conjunction of the parts."""
        return reduce(and_, (part.allowed(q_positions, k_positions) for part in self.parts))

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        """Return nothing where a part has nothing, everything where all parts have everything."""
        corners = (q_first, q_last, k_first, k_last)
        return reduce(torch.minimum, (part.bounds(*corners) for part in self.parts))

    def terms(self) -> tuple[Pattern, ...]:
        """Return each choice of one term of every part."""
        choices = product(*(part.terms() for part in self.parts))
        return tuple(And(choice) for choice in choices)

    @classmethod
    def samples(cls) -> tuple[Pattern, ...]:
        """Return Full & Causal, which equals Causal, and a causal window."""
        return (cls((Full(), Causal())), cls((cls.table["Window"](2), Causal())))


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
    def dense(self) -> bool:  # type: ignore[override]
        """True if one part is computed whole anyway."""
        return any(part.dense for part in self.parts)

    @property
    def reach(self) -> int | None:  # type: ignore[override]
        """The longest reach of a part."""
        return farthest(self.parts)

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return the disjunction of the parts."""
        return reduce(or_, (part.allowed(q_positions, k_positions) for part in self.parts))

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        """Return everything where a part has everything, nothing where no part has anything."""
        corners = (q_first, q_last, k_first, k_last)
        return reduce(torch.maximum, (part.bounds(*corners) for part in self.parts))

    def terms(self) -> tuple[Pattern, ...]:
        """Return the terms of all parts."""
        return tuple(term for part in self.parts for term in part.terms())

    @classmethod
    def samples(cls) -> tuple[Pattern, ...]:
        """Return Causal | Full, which equals Full, and a window with a hub."""
        return (cls((Causal(), Full())), cls((cls.table["Window"](2), cls.table["Global"](1))))
