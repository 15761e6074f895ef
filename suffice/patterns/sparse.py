"""Sparse long-range patterns: strided, block tails, global tokens and random keys."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import gcd
from operator import or_

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.patterns.base import Band, Pattern, classify
from suffice.utils.records import derived


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

    spacing = derived(lambda self: self.stride)

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return True where the distance is a multiple of the stride."""
        return (q_positions - k_positions) % self.stride == 0

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        """Classify rectangles: the distances they hold decide."""
        low, high = q_first - k_last, q_last - k_first
        return classify(
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


@dataclass(frozen=True)
class Fixed(Pattern):
    """Every query sees the last `tail` keys of each stretch: k mod stride >= stride - tail.

    Those keys gather what their stretch has to say, through `Block(stride)` combined with this
    pattern, and hand it to everyone. With `& Causal()` the queries before the first tail see no key
    at all unless it is combined with another pattern.

    Args:
        stride: length of a stretch, positions, at least 1.
        tail: keys of each, 1 to stride.

    Raises:
        ConfigError: for a stride below 1, or a tail that is not 1 to stride.

    Cost: about T S tail / stride visible pairs.
    Example:
        >>> Fixed(3).mask(1, 7).int().tolist()
        [[0, 0, 1, 0, 0, 1, 0]]

    Source: Child et al. 2019, arXiv:1904.10509, section 4.2, A^(2) of fixed attention (l = stride,
        c = tail). The paper is causal; without `& Causal()` ours sees both ways. All heads share
        one tail; the paper's may have different parts of it.
    """

    stride: int
    tail: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride < 1 or not 1 <= self.tail <= self.stride:
            raise ConfigError(
                f"Fixed(stride={self.stride}, tail={self.tail}): a stretch has at least 1 position "
                "and its tail 1 to all of them; give 1 <= tail <= stride."
            )

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return True where the key is in the tail of its stretch."""
        shape = torch.broadcast_shapes(q_positions.shape, k_positions.shape)
        return (k_positions % self.stride >= self.stride - self.tail).expand(shape)

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        """Classify rectangles: where in a stretch their keys begin decides."""
        shape = torch.broadcast_shapes(q_first.shape, q_last.shape, k_first.shape, k_last.shape)
        more = k_last - k_first
        rest = self.stride - self.tail
        into_tail = (k_first - rest) % self.stride
        return classify(
            none=k_first % self.stride + more < rest,
            every=(into_tail + more < self.tail) | (rest == 0),
        ).expand(shape)

    @classmethod
    def samples(cls) -> tuple[Pattern, ...]:
        """Return every second key."""
        return (cls(2),)


@dataclass(frozen=True)
class Global(Pattern):
    """The first `tokens` positions see every key, and every query sees them: q < g or k < g.

    Hubs: with a window they join any two positions in two steps. A class token, a question or a
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
        """Classify rectangles: inside the hubs' rows or columns, or outside both."""
        return classify(
            none=(q_first >= self.tokens) & (k_first >= self.tokens),
            every=(q_last < self.tokens) | (k_last < self.tokens),
        )

    def band_of_past(self) -> Band:
        """Return sinks alone: a hub that is a query sees none but hubs before it."""
        return Band(-1, 0, self.tokens)

    @classmethod
    def samples(cls) -> tuple[Pattern, ...]:
        """Return one hub."""
        return (cls(1),)


GOLDEN = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1
ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31
NONNEGATIVE = (1 << 63) - 1
MAX_RANDOM_KEYS = 4096


@dataclass(frozen=True)
class Random(Pattern):
    """Each query sees `keys` positions drawn at random, once for good.

    Draw j of r = min(keys, n) comes from the j-th of r equal parts of the n candidates, from
    floor(n j / r) to floor(n (j + 1) / r) - 1: every candidate is equally likely, all draws of a
    query differ. A draw is a hash of (seed, query, j) in its own integer arithmetic and of nothing
    else, so it is the same in training and streaming, on every device and in every release, and the
    seed in the spec is all there is to save. Between far positions it makes the short cuts that
    windows lack; blocks of it are `Block(64, Random(3, length=...))`.

    Args:
        keys: positions each query sees, 1 to 4,096; all candidates where there are fewer.
        length: candidates are 0..length - 1, before and after the query, and no input may be
            longer; None: 0..q, causal and for any length.
        seed: seed of the draws, any whole number.

    Raises:
        ConfigError: for fewer than 1 key or more than 4,096, or a length below 1.

    Cost: T keys visible pairs.
    Example:
        >>> Random(2, length=6, seed=1).mask(6, 6).sum(dim=1).tolist()
        [2, 2, 2, 2, 2, 2]
        >>> Random(2).mask(4, 4).sum(dim=1).tolist()
        [1, 2, 2, 2]

    Source: Zaheer et al. 2020, arXiv:2007.14062, section 2 (r random keys for each query). The
        paper draws without parts, again for each model, from numpy's generator. The hash is that of
        Steele et al. 2014, doi:10.1145/2660193.2660195, figure 14 (variant 13).
    """

    keys: int
    length: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keys < 1:
            raise ConfigError(f"Random(keys={self.keys}) draws nothing; give at least 1.")
        if self.keys > MAX_RANDOM_KEYS:
            raise ConfigError(
                f"Random(keys={self.keys}) takes a step for each key; give at most "
                f"{MAX_RANDOM_KEYS:,}, or Full() for all positions."
            )
        if self.length is not None and self.length < 1:
            raise ConfigError(
                f"Random(length={self.length}) has no position to draw from; give the longest "
                "input in tokens, or None to draw from the past of each query."
            )

    causal = derived(lambda self: self.length is None)
    max_length = derived(lambda self: self.length)

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return True where the key was drawn for the query."""
        return reduce(or_, (k_positions == draw for draw in self.draws(q_positions)))

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        """Classify rectangles: nothing is drawn beyond the candidates."""
        known = super().bounds(q_first, q_last, k_first, k_last)
        last = q_last if self.length is None else self.length - 1
        return known.masked_fill(k_first > last, 0)

    def pairs(self, queries: int, keys: int) -> int:
        """Count the draws that fall among the keys."""
        q = torch.arange(keys - queries, keys, device="cpu")
        return sum(int(((draw >= 0) & (draw < keys)).sum()) for draw in self.draws(q))

    def draws(self, q_positions: Tensor) -> list[Tensor]:
        """Return the keys drawn for each query, int64 in the shape of its position; -1 for none."""
        q = q_positions.long()
        candidates = q + 1 if self.length is None else torch.full_like(q, self.length)
        parts = candidates.clamp(0, self.keys)
        of_query = _mixed(_mixed_number(self.seed) ^ q)
        drawn = []
        for j in range(self.keys):
            first = candidates * j // parts.clamp(min=1)
            size = candidates * (j + 1) // parts.clamp(min=1) - first
            number = _mixed(of_query + _signed((j + 1) * GOLDEN)) & NONNEGATIVE
            drawn.append(torch.where(j < parts, first + number % size.clamp(min=1), -1))
        return drawn

    @classmethod
    def samples(cls) -> tuple[Pattern, ...]:
        """Return two keys of the first nine, and two of the past."""
        return (cls(2, length=9, seed=1), cls(2, seed=1))


def _mixed(words: Tensor) -> Tensor:
    """Return 64-bit words whose every bit depends on every bit of the given ones."""
    for shift, factor in ROUNDS:
        words = (words ^ _shifted(words, shift)) * _signed(factor)
    return words ^ _shifted(words, LAST_SHIFT)


def _shifted(words: Tensor, by: int) -> Tensor:
    """Shift right with zeros; torch repeats the sign."""
    return (words >> by) & ((1 << (64 - by)) - 1)


def _mixed_number(seed: int) -> int:
    """Return `_mixed` of a whole number of any size, its low 64 bits."""
    word = (seed + GOLDEN) & WORD
    for shift, factor in ROUNDS:
        word = (word ^ (word >> shift)) * factor & WORD
    return _signed(word ^ (word >> LAST_SHIFT))


def _signed(word: int) -> int:
    word &= WORD
    return word - (1 << 64) if word >> 63 else word
