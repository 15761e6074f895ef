"""A pattern says which key positions a query position may see.

One object, several uses: `allowed` is the predicate every op and memory asks, `layout` lists the
blocks a fast op has to touch, `pairs` counts what a query-key product costs. Only `allowed` has to
be written; the rest follows from it, and a pattern that also overrides `bounds` is compiled
without looking at every pair. Positions are integers; a query without an earlier context stands at
the last `queries` of `keys` positions (bottom-right alignment), so one new token after 8 cached
ones stands at position 8.

Letters: H heads, T queries, S keys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from suffice.axis import Axis
from suffice.errors import ConfigError
from suffice.patterns.layout import Layout, layout_of
from suffice.patterns.pairs import pairs_of

KEPT_BLOCKS = 1 << 20  # layouts up to 1 MiB are kept between calls


class Pattern(Axis, ABC, family="pattern"):
    """Base of all patterns; values combine with `&` and `|`.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Parity(Pattern):
        ...     def allowed(self, q_positions, k_positions):
        ...         return (q_positions + k_positions) % 2 == 0
        >>> Parity().mask(2, 3).int().tolist(), Parity().pairs(300, 300)
        ([[0, 1, 0], [1, 0, 1]], 45000)
        >>> del Pattern.table["Parity"]
    """

    causal: bool = False
    """True if no query ever sees a key after itself."""

    dense: bool = False
    """True if ops compute the whole query-key matrix: skipping blocks would save little."""

    crosses: bool = False
    """True if the pattern means something between two sequences, as cross-attention has them."""

    max_length: int | None = None
    """The longest sequence it can serve, in tokens; None = any."""

    heads: int | None = None
    """The number of heads it is made for; None = any, and all alike."""

    spacing: int = 1
    """Allowed pairs lie only at distances that are multiples of it."""

    relative: bool = False
    """True if only the distance between query and key matters, not where they stand."""

    reach: int | None = None
    """Positions from a query back to the furthest key it may see, both included; None = any."""

    @abstractmethod
    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return True where the query position may see the key position; the shapes broadcast.

        Positions come as [..., T, 1] and [..., 1, S]. A pattern whose heads differ returns its
        heads on the third axis from the right, where the positions have 1.
        """

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        """Return what is known of rectangles of pairs, from their corners alone.

        Args:
            q_first: position of the first query; all four broadcast.
            q_last: of the last, included.
            k_first: of the first key.
            k_last: of the last, included.

        Returns:
            int8: 0 if no pair is allowed (for any head), 2 if every pair is (for every head),
            1 if that is not known. 1 is never wrong; a rectangle of one pair is asked.
        """
        shape = torch.broadcast_shapes(q_first.shape, q_last.shape, k_first.shape, k_last.shape)
        unknown = torch.ones(shape, dtype=torch.int8, device=q_first.device)
        if self.heads is not None:
            return unknown
        single = (q_first == q_last) & (k_first == k_last)
        return torch.where(single, 2 * self.allowed(q_first, k_first).to(torch.int8), unknown)

    def of_heads(self, num_heads: int) -> tuple[Pattern, ...]:
        """Return the pattern of each head.

        Raises:
            ConfigError: for another number of heads than the pattern is made for.
        """
        if self.heads is None:
            return (self,) * num_heads
        if self.heads != num_heads:
            raise ConfigError(
                f"{self!r} is made for {self.heads} heads, not for {num_heads}; give as many."
            )
        return tuple(_HeadOf(self, head) for head in range(num_heads))

    def terms(self) -> tuple[Pattern, ...]:
        """Return patterns whose union this is, with every `|` taken out of the `&`."""
        return (self,)

    def every(self, step: int, first: int) -> Pattern:
        """Return what the pattern is among the positions first, first + step, ...

        Args:
            step: distance of those positions, which count 0, 1, ... in the pattern returned.
            first: the one that counts 0.
        """
        return _Every(self, step, first)

    def __and__(self, other: Pattern) -> Pattern:
        return self.table["And"]((self, other))

    def __or__(self, other: Pattern) -> Pattern:
        return self.table["Or"]((self, other))

    def mask(self, queries: int, keys: int, *, device: torch.device | str = "cpu") -> Tensor:
        """Return the dense mask of `queries` that stand last among `keys`: bool [T, S].

        [H, T, S] where the heads differ.
        """
        q = torch.arange(keys - queries, keys, device=device)
        k = torch.arange(keys, device=device)
        allowed = self.allowed(q[:, None], k[None, :])
        return allowed.expand(*allowed.shape[:-2], queries, keys)

    def layout(self, queries: int, keys: int, block: int = 64) -> Layout:
        """Return the blocks touched by `queries` that stand last among `keys`.

        It is computed once for equal patterns; do not write into it.
        """
        large = -(-queries // block) * -(-keys // block) > KEPT_BLOCKS
        if large or torch.compiler.is_compiling():
            return layout_of(self, queries, keys, block)
        return _kept(self, queries, keys, block)

    def pairs(self, queries: int, keys: int) -> int:
        """Count the visible query-key pairs of `queries` that stand last among `keys`.

        Where heads differ, the pairs that some head sees; `of_heads` has the pattern of each.
        """
        return pairs_of(self, queries, keys)


@lru_cache(maxsize=64)
def _kept(pattern: Pattern, queries: int, keys: int, block: int) -> Layout:
    return layout_of(pattern, queries, keys, block)


@dataclass(frozen=True)
class _HeadOf(Pattern):
    """One head of a pattern whose heads differ."""

    pattern: Pattern
    head: int

    @property
    def causal(self) -> bool:  # type: ignore[override]
        return self.pattern.causal

    @property
    def dense(self) -> bool:  # type: ignore[override]
        return self.pattern.dense

    @property
    def crosses(self) -> bool:  # type: ignore[override]
        return self.pattern.crosses

    @property
    def max_length(self) -> int | None:  # type: ignore[override]
        return self.pattern.max_length

    @property
    def spacing(self) -> int:  # type: ignore[override]
        return self.pattern.spacing

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        allowed = self.pattern.allowed(q_positions, k_positions)
        if max(q_positions.dim(), k_positions.dim()) < allowed.dim():
            return allowed.select(-3, self.head)
        return allowed.narrow(-3, self.head, 1)


@dataclass(frozen=True)
class _Every(Pattern):
    """A pattern among every step-th position."""

    pattern: Pattern
    step: int
    first: int

    @property
    def causal(self) -> bool:  # type: ignore[override]
        return self.pattern.causal

    @property
    def heads(self) -> int | None:  # type: ignore[override]
        return self.pattern.heads

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        return self.pattern.allowed(*self._whole(q_positions, k_positions))

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        return self.pattern.bounds(*self._whole(q_first, q_last, k_first, k_last))

    def _whole(self, *positions: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.first + self.step * position for position in positions)
