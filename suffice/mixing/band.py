"""Banded products along the sequence: each position reads `before` back and `after` ahead.

The sequence is cut into sides of equal length; each is multiplied by a dense square that holds the
band, so the cost grows with the length times the side.

Letters: B batch, S positions, N sides, F features of a map.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_SIDE = 32  # positions; below, a product is too small to run at full speed


def cut(keys: int, before: int, after: int) -> tuple[int, int]:
    """Return how many sides S positions are cut into and the length of a side.

    A side is at least as long as `before` and `after`, so that its positions read no further than
    its two neighbours. It is one dense side where that is less work.
    """
    before, after = reach(keys, before, after)
    count = max(-(-keys // max(MIN_SIDE, before, after)), 1)
    side = max(-(-keys // count), before, after)
    if keys * keys <= count * side * (side + before + after):
        return 1, keys
    return count, side


def reach(keys: int, before: int, after: int) -> tuple[int, int]:
    """Return `before` and `after` within the S positions there are."""
    return min(before, max(keys - 1, 0)), min(after, max(keys - 1, 0))


def flops(keys: int, before: int, after: int, features: int) -> int:
    """Count the FLOPs of `product` for one sample of S positions with F features."""
    count, side = cut(keys, before, after)
    before, after = reach(keys, before, after)
    columns = side if count == 1 else side + before + after
    return 2 * count * side * columns * features


def product(band: Tensor, x: Tensor, before: int) -> Tensor:
    """Return the product of a band and x [B, maps, S, F].

    Args:
        band: [B or 1, maps, S or 1, offsets]; one row stands for all.
        x: the values; beyond both ends they are zero.
        before: how far back column 0 reads.
    """
    keys, after = x.shape[2], band.shape[-1] - 1 - before
    back, ahead = reach(keys, before, after)
    band = band[..., before - back : before + ahead + 1]
    count, side = cut(keys, before, after)
    padding = count * side - keys
    maps = _skew(_split_rows(band, count, side, padding), side)
    values = F.pad(x, (0, 0, 0, padding)).unflatten(2, (count, side))
    if count == 1:
        maps = maps[..., back : back + side]
    else:
        values = _with_neighbours(values, back, ahead)
    return torch.matmul(maps, values).flatten(2, 3)[:, :, :keys]


def same_document(positions: Tensor, before: int, after: int) -> Tensor:
    """Return where a band stays inside its document: bool [B, 1, S, offsets].

    Args:
        positions: int [B, S], position of each token within its document, one up at each step.
        before: how far back column 0 reads.
        after: how far ahead the last column reads.
    """
    outside = -(before + positions.shape[1] + 1)
    read = F.pad(positions, (before, after), value=outside).unfold(1, before + after + 1, 1)
    steps = torch.arange(-before, after + 1, device=positions.device)
    return (read == positions[..., None] + steps)[:, None]


def _split_rows(band: Tensor, count: int, side: int, padding: int) -> Tensor:
    """Return the band of each side: [B or 1, maps, N or 1, side, offsets]."""
    if band.shape[-2] == 1 != count * side:
        return band[..., None, :].expand(*band.shape[:-1], side, band.shape[-1])
    return F.pad(band, (0, 0, 0, padding)).unflatten(-2, (count, side))


def _skew(band: Tensor, side: int) -> Tensor:
    """Return the dense map [..., side, side + offsets - 1] of a band [..., side, offsets].

    Row t moves t columns to the right: rows written one behind the other, each a column short.
    """
    columns = side + band.shape[-1] - 1
    flat = F.pad(band, (0, side)).flatten(-2)[..., : side * columns]
    return flat.unflatten(-1, (side, columns))


def _with_neighbours(values: Tensor, before: int, after: int) -> Tensor:
    """Return sides [B, maps, N, side, F] with the end of the one before, the start of the next."""
    side = values.shape[3]
    parts = [values]
    if before:
        ends = values[:, :, :-1, side - before :]
        parts.insert(0, F.pad(ends, (0, 0, 0, 0, 1, 0)))
    if after:
        parts.append(F.pad(values[:, :, 1:, :after], (0, 0, 0, 0, 0, 1)))
    return torch.cat(parts, dim=3)
