"""Each query sees some keys drawn once for good."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.patterns.base import Pattern

GOLDEN = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1
ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31
NONNEGATIVE = (1 << 63) - 1


@dataclass(frozen=True)
class Random(Pattern):
    """Each query sees `keys` positions drawn at random, once for good.

    Draw j of r = min(keys, n) comes from the j-th of r equal parts of the n candidates, from
    floor(n j / r) to floor(n (j + 1) / r) - 1: every candidate is equally likely, all draws of a
    query differ. A draw is a hash of (seed, query, j) in integers of its own and of nothing else,
    so it is the same in training and streaming, on every device and in every release, and the
    seed in the spec is all there is to save. Between far positions it makes the short cuts that
    windows lack; blocks of it are `Block(64, Random(3, length=...))`.

    Args:
        keys: positions each query sees, at least 1; all candidates where there are fewer.
        length: candidates are 0..length - 1, before and after the query, and no input may be
            longer; None = 0..q, causal and for any length.
        seed: of the draws, any whole number.

    Raises:
        ConfigError: for fewer than 1 key, or a length below 1.

    Cost: T keys visible pairs.
    Example:
        >>> Random(2, length=6, seed=1).mask(6, 6).sum(dim=1).tolist()
        [2, 2, 2, 2, 2, 2]
        >>> Random(2).mask(4, 4).sum(dim=1).tolist()
        [1, 2, 2, 2]

    Source: Zaheer et al. 2020, arXiv:2007.14062, section 2 (r random keys for each query). The
        paper draws without parts, anew for each model, from numpy's generator. The hash is that of
        Steele et al. 2014, doi:10.1145/2660193.2660195, figure 14 (variant 13).
    """

    keys: int
    length: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keys < 1:
            raise ConfigError(f"Random(keys={self.keys}) draws nothing; give at least 1.")
        if self.length is not None and self.length < 1:
            raise ConfigError(
                f"Random(length={self.length}) has no position to draw from; give the longest "
                "input in tokens, or None to draw from the past of each query."
            )

    @property
    def causal(self) -> bool:  # type: ignore[override]
        """True if the candidates are the past."""
        return self.length is None

    @property
    def max_length(self) -> int | None:  # type: ignore[override]
        """The length."""
        return self.length

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return True where the key was drawn for the query."""
        seen = torch.zeros((), dtype=torch.bool, device=q_positions.device)
        for draw in self.draws(q_positions):
            seen = seen | (k_positions == draw)
        return seen

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        """Return what is known of rectangles: nothing is drawn beyond the candidates."""
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
    """Return the signed number with these low 64 bits."""
    word &= WORD
    return word - (1 << 64) if word >> 63 else word
