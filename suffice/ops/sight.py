"""A pattern as the native kernels read it: a band beside the diagonal, or lists of keys.

Letters: H heads, T queries, S keys; n pairs of a block of queries and a key.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from suffice.native.attention import BLOCK, Band, Lists, Sight
from suffice.patterns import And, Causal, Full, Pattern, Window

ASKED = 1 << 10  # blocks whose pairs are asked at a time
EVERY = 2  # pairs of a block, as a layout says it


def near(pattern: Pattern) -> tuple[int | None, int | None] | None:
    """Return how many keys before and after its own a query sees; None = all of them.

    None in place of the pair if the pattern is no band.
    """
    kind = type(pattern)
    if kind is Full:
        return None, None
    if kind is Causal:
        return None, 0
    if kind is Window:
        return pattern.size - 1, pattern.size - 1
    if kind is not And:
        return None
    before: int | None = None
    after: int | None = None
    for part in pattern.parts:
        band = near(part)
        if band is None:
            return None
        before, after = _less(before, band[0]), _less(after, band[1])
    return before, after


def _less(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)


def sight(pattern: Pattern, queries: int, keys: int, heads: int) -> Sight:
    """Return who sees what, the queries last among the keys."""
    band = near(pattern)
    if band is None:
        return _kept(pattern, queries, keys, heads)
    offset, all_of_them = keys - queries, queries + keys
    before, after = band
    return Band(
        -all_of_them if before is None else max(offset - before, -all_of_them),
        all_of_them if after is None else min(offset + after, all_of_them),
    )


def share_of_lanes(lists: Lists) -> float:
    """Return the share of the pairs computed that are seen."""
    if not len(lists.keys):
        return 1.0
    bits = torch.arange(BLOCK, dtype=torch.int32)
    seen = sum(
        int(((some[:, None] >> bits) & 1).sum()) for some in lists.seen_by.split(ASKED * BLOCK)
    )
    return seen / (BLOCK * len(lists.keys))


@lru_cache(maxsize=64)
def _kept(pattern: Pattern, queries: int, keys: int, heads: int) -> Lists:
    with torch.inference_mode(False), torch.device("cpu"):
        return _lists(pattern, queries, keys, heads)


def _lists(pattern: Pattern, queries: int, keys: int, heads: int) -> Lists:
    of_heads = pattern.of_heads(heads)
    different = list(dict.fromkeys(of_heads))
    found = [_listed(one, queries, keys) for one in different]
    ends = torch.tensor([0] + [len(numbers) for _, numbers, _ in found]).cumsum(0)
    return Lists(
        torch.stack([starts + end for (starts, _, _), end in zip(found, ends, strict=False)]),
        torch.cat([numbers for _, numbers, _ in found]),
        torch.cat([bits for _, _, bits in found]),
        torch.tensor([different.index(one) for one in of_heads]),
    )


def _listed(pattern: Pattern, queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return where the keys of each block begin, the keys, and who sees them."""
    touched = pattern.layout(queries, keys, BLOCK).touched
    blocks = touched.nonzero()
    numbers = blocks[:, 1:] * BLOCK + torch.arange(BLOCK)  # [n, 32]
    bits = torch.full(numbers.shape, -1, dtype=torch.int32)
    some = (touched[blocks[:, 0], blocks[:, 1]] != EVERY).nonzero().flatten()
    for at in some.split(ASKED):
        bits[at] = _bits(pattern, blocks[at], queries, keys)
    real = (numbers < keys) & (bits != 0)
    counts = torch.zeros(touched.shape[0] + 1, dtype=torch.long)
    counts.index_add_(0, blocks[:, 0] + 1, real.sum(1))
    return counts.cumsum(0), numbers[real].int(), bits[real]


def _bits(pattern: Pattern, blocks: Tensor, queries: int, keys: int) -> Tensor:
    """Return for the keys of blocks [n, 2] the bits of the queries that see them: int32 [n, 32]."""
    within = torch.arange(BLOCK)
    q = (blocks[:, :1] * BLOCK + within).clamp(max=queries - 1) + (keys - queries)
    k = (blocks[:, 1:] * BLOCK + within).clamp(max=keys - 1)
    allowed = pattern.allowed(q[:, :, None], k[:, None, :]).expand(len(blocks), BLOCK, BLOCK)
    powers = torch.ones(BLOCK, dtype=torch.int64) << within
    return (allowed.long() * powers[:, None]).sum(1).to(torch.int32)
