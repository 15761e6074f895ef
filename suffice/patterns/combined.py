"""Compositions of patterns: `a & b`, `a | b`, blocks of positions, and one pattern per head."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import lcm
from operator import and_, or_
from typing import Any

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.patterns.base import Band, Pattern, classify
from suffice.patterns.local import Causal, Full, Window
from suffice.utils.records import derived


class _Several(Pattern):
    parts: tuple[Pattern, ...]

    crosses = derived(lambda self: all(self._all("crosses")))
    relative = derived(lambda self: all(self._all("relative")))
    max_length = derived(lambda self: self._least("max_length"))

    def _all(self, attribute: str) -> list[Any]:
        return [getattr(part, attribute) for part in self.parts]

    def _least(self, attribute: str) -> int | None:
        numbers = [number for number in self._all(attribute) if number is not None]
        return min(numbers) if numbers else None  # torch.compile refuses min(..., default=None)

    def _farthest(self) -> int | None:
        reaches = self._all("reach")
        return None if None in reaches else max(reaches)

    def every(self, step: int, first: int) -> Pattern:
        return type(self)(tuple(part.every(step, first) for part in self.parts))  # type: ignore[call-arg]


@dataclass(frozen=True)
class _Combined(_Several):
    parts: tuple[Pattern, ...]

    @staticmethod
    @abstractmethod
    def _combine_bands(a: Band, b: Band) -> Band | None: ...

    def __post_init__(self) -> None:
        several = isinstance(self.parts, tuple) and len(self.parts) > 1
        if not several or not all(isinstance(part, Pattern) for part in self.parts):
            raise ConfigError(
                f"{type(self).__name__} combines two or more patterns, got {self.parts!r}."
            )
        super().__post_init__()
        heads = {part.heads for part in self.parts} - {None}
        if len(heads) > 1:
            numbers = " and ".join(map(str, sorted(heads)))  # type: ignore[type-var]
            raise ConfigError(
                f"{type(self).__name__} combines patterns made for {numbers} heads; give all the "
                "same number of heads."
            )

    heads = derived(lambda self: next(filter(None, self._all("heads")), None))

    def of_heads(self, num_heads: int) -> tuple[Pattern, ...]:
        """Return the combination of each head."""
        if self.heads is None:
            return super().of_heads(num_heads)
        of_parts = [part.of_heads(num_heads) for part in self.parts]
        return tuple(type(self)(parts) for parts in zip(*of_parts, strict=True))

    def band(self) -> Band | None:
        """Return the combination of the parts' bands; of a causal one, those of their past."""
        if not self.causal:
            return self._bands([part.band() for part in self.parts])
        band = self.band_of_past()
        return None if band is None or band.before == -1 else band

    def band_of_past(self) -> Band | None:
        return self._bands([part.band_of_past() for part in self.parts])

    def _bands(self, bands: list[Band | None]) -> Band | None:
        if None in bands:
            return None
        return reduce(lambda a, b: a and self._combine_bands(a, b), bands)


@dataclass(frozen=True)
class And(_Combined):
    """A pair is allowed if every part allows it; written `a & b`.

    Example:
        >>> (Full() & Causal()).mask(2, 2).tolist()
        [[True, False], [True, True]]
    """

    _combine_bands = staticmethod(Band.__and__)

    causal = derived(lambda self: any(self._all("causal")))
    dense = derived(lambda self: all(self._all("dense")))

    reach = derived(lambda self: self._least("reach"))
    spacing = derived(lambda self: lcm(*self._all("spacing")))

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return the conjunction of the parts."""
        return reduce(and_, (part.allowed(q_positions, k_positions) for part in self.parts))

    def bounds(self, *corners: Tensor) -> Tensor:
        """Return nothing where a part has nothing, everything where all parts have everything."""
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

    _combine_bands = staticmethod(Band.__or__)

    causal = derived(lambda self: all(self._all("causal")))
    dense = derived(lambda self: any(self._all("dense")))
    reach = derived(_Several._farthest)

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return the disjunction of the parts."""
        return reduce(or_, (part.allowed(q_positions, k_positions) for part in self.parts))

    def bounds(self, *corners: Tensor) -> Tensor:
        """Return everything where a part has everything, nothing where no part has anything."""
        return reduce(torch.maximum, (part.bounds(*corners) for part in self.parts))

    def terms(self) -> tuple[Pattern, ...]:
        """Return the terms of all parts."""
        return tuple(term for part in self.parts for term in part.terms())

    @classmethod
    def samples(cls) -> tuple[Pattern, ...]:
        """Return Causal | Full, which equals Full, and a window with a hub."""
        return (cls((Causal(), Full())), cls((cls.table["Window"](2), cls.table["Global"](1))))


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
        ConfigError: for a size below 1, or an `over` that is not a pattern.

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
                f"Block(over={self.over!r}) is not a pattern; give an instance such as Window(1)."
            )
        super().__post_init__()
        if self.size < 1:
            raise ConfigError(f"Block(size={self.size}) holds no position; give at least 1.")

    reach = derived(lambda self: self.over.reach and self.over.reach * self.size)
    dense = derived(lambda self: self.over.dense)
    crosses = derived(lambda self: self.over.crosses)

    heads = derived(lambda self: self.over.heads)
    max_length = derived(lambda self: self.over.max_length and self.size * self.over.max_length)

    def of_heads(self, num_heads: int) -> tuple[Pattern, ...]:
        """Return the blocks of each head of `over`."""
        return tuple(Block(self.size, over) for over in self.over.of_heads(num_heads))

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return what `over` allows the blocks of the positions."""
        return self.over.allowed(q_positions // self.size, k_positions // self.size)

    def bounds(self, *corners: Tensor) -> Tensor:
        """Classify rectangles by the blocks that they touch."""
        return self.over.bounds(*(corner // self.size for corner in corners))

    @classmethod
    def samples(cls) -> tuple[Pattern, ...]:
        """Return pairs, also with a first pattern that is a hub."""
        return (cls(2), cls(2, cls.table["Global"](1) | Window(1)))


@dataclass(frozen=True)
class PerHead(_Several):
    """Head h follows patterns[h].

    It makes a layer of specialists: some heads near, some far. `&` and `|` reach into every head.

    Args:
        patterns: pattern of each query head, in order.

    Raises:
        ConfigError: if something is not a pattern, or is itself made for several heads.

    Cost: the sum over heads of what each pattern costs.
    Example:
        >>> from suffice.patterns import Causal, Full
        >>> PerHead((Full(), Causal())).mask(2, 2).int().tolist()
        [[[1, 1], [1, 1]], [[1, 0], [1, 1]]]

    Source: Child et al. 2019, arXiv:1904.10509, section 4.2 (factorised heads, each with a
        pattern). No difference.
    """

    patterns: tuple[Pattern, ...]

    def __post_init__(self) -> None:
        several = isinstance(self.patterns, tuple) and self.patterns
        if not several or not all(isinstance(part, Pattern) for part in self.patterns):
            raise ConfigError(
                f"PerHead takes a tuple of patterns, one for each head, got {self.patterns!r}."
            )
        super().__post_init__()
        nested = [part for part in self.patterns if part.heads is not None]
        if nested:
            raise ConfigError(
                f"{nested[0]!r} is made for {nested[0].heads} heads; PerHead takes the pattern of "
                "one head in each place."
            )

    parts = derived(lambda self: self.patterns)
    causal = derived(lambda self: all(self._all("causal")))
    dense = derived(lambda self: all(self._all("dense")))
    reach = derived(_Several._farthest)
    heads = derived(lambda self: len(self.patterns))

    def of_heads(self, num_heads: int) -> tuple[Pattern, ...]:
        """Return the patterns."""
        return self.patterns if num_heads == self.heads else super().of_heads(num_heads)

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return what each head allows: [..., H, T, S]."""
        shape = torch.broadcast_shapes(q_positions.shape, k_positions.shape, (1, 1, 1))
        parts = [part.allowed(q_positions, k_positions).expand(shape) for part in self.patterns]
        return torch.cat(parts, dim=-3)

    def bounds(self, *corners: Tensor) -> Tensor:
        """Classify rectangles for all heads together."""
        shape = torch.broadcast_shapes(*(corner.shape for corner in corners))
        known = torch.stack([part.bounds(*corners).expand(shape) for part in self.patterns])
        every, none = (known == 2).all(dim=0), (known == 0).all(dim=0)  # noqa: PLR2004
        return classify(none=none, every=every)

    @classmethod
    def samples(cls) -> tuple[Pattern, ...]:
        """Return two heads with local patterns and two with distant ones."""
        near, far = cls.table["Window"](2), cls.table["Strided"](2)
        return (cls((near, near, far, far)),)
