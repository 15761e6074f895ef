"""What a pattern claims of a rectangle from its corners holds for every pair in it."""

from __future__ import annotations

import pytest
import torch

from suffice.patterns import (
    Block,
    Causal,
    Dilated,
    Fixed,
    Full,
    Global,
    PerHead,
    Random,
    Strided,
    Window,
)

from .values import ALL

LENGTH = 67


def rectangles(count, seed):
    """Corners q_first, q_last, k_first, k_last of random rectangles, small and large, [count]."""
    generator = torch.Generator().manual_seed(seed)
    corners = []
    for _ in "qk":
        first = torch.randint(0, LENGTH, (count,), generator=generator)
        most = torch.tensor([1, 2, 8, LENGTH])[torch.arange(count) % 4]
        more = (torch.rand(count, generator=generator) * most).long()
        corners += [first, (first + more).clamp(max=LENGTH - 1)]
    return corners


def truth(mask, corners):
    """0, 1 or 2 of each rectangle of bool [H, T, S]."""
    found = []
    for q_first, q_last, k_first, k_last in zip(*(c.tolist() for c in corners), strict=True):
        part = mask[:, q_first : q_last + 1, k_first : k_last + 1]
        found.append(int(part.any()) + int(part.all()))
    return torch.tensor(found)


@pytest.mark.parametrize("pattern", ALL, ids=repr)
def test_bounds_are_never_wrong(pattern):
    corners = rectangles(300, seed=1)
    mask = pattern.mask(LENGTH, LENGTH)
    want = truth(mask if mask.dim() == 3 else mask[None], corners)
    got = pattern.bounds(*corners)
    assert got.dtype is torch.int8
    assert got.shape == (300,)
    known = got != 1
    assert torch.equal(got[known].long(), want[known])


@pytest.mark.parametrize("pattern", ALL, ids=repr)
def test_bounds_of_every_so_many_positions(pattern):
    corners = [corner // 8 for corner in rectangles(60, seed=2)]
    for step, first in [(1, 0), (2, 1), (3, 0), (8, 7)]:
        part = pattern.every(step, first)
        mask = part.mask(9, 9)
        want = truth(mask if mask.dim() == 3 else mask[None], corners)
        got = part.bounds(*corners)
        known = got != 1
        assert torch.equal(got[known].long(), want[known])


@pytest.mark.parametrize(
    ("pattern", "corners", "want"),
    [
        (Full(), (0, 9, 0, 9), 2),
        (Causal(), (5, 9, 0, 5), 2),
        (Causal(), (5, 9, 10, 11), 0),
        (Causal(), (5, 9, 6, 7), 1),
        (Window(4), (5, 6, 3, 5), 2),
        (Window(4), (5, 6, 2, 5), 1),
        (Window(4), (5, 6, 10, 12), 0),
        (Window(4), (5, 6, 9, 12), 1),
        (Window(4), (10, 12, 5, 6), 0),
        (Window(4), (10, 12, 5, 8), 1),
        (Dilated(3, 4), (20, 21, 0, 11), 0),
        (Dilated(3, 4), (20, 21, 0, 13), 1),
        (Dilated(3, 4), (20, 20, 17, 19), 0),
        (Dilated(3, 4), (20, 20, 16, 16), 2),
        (Dilated(3, 4), (20, 20, 15, 15), 0),
        (Dilated(5, 1), (20, 21, 17, 20), 2),
        (Dilated(5, 1), (20, 21, 16, 20), 1),
        (Strided(4), (8, 8, 4, 4), 2),
        (Strided(4), (8, 9, 6, 7), 0),
        (Strided(4), (8, 9, 6, 8), 1),
        (Strided(1), (8, 9, 0, 8), 2),
        (Fixed(8, 3), (0, 9, 5, 7), 2),
        (Fixed(8, 3), (0, 9, 8, 12), 0),
        (Fixed(8, 3), (0, 9, 7, 8), 1),
        (Fixed(8, 3), (0, 9, 12, 13), 1),
        (Fixed(8, 8), (0, 9, 3, 30), 2),
        (Global(4), (0, 3, 9, 99), 2),
        (Global(4), (9, 99, 2, 3), 2),
        (Global(4), (4, 9, 4, 9), 0),
        (Global(4), (3, 4, 9, 10), 1),
        (Random(3), (4, 9, 10, 12), 0),
        (Random(3), (1, 1, 0, 0), 2),
        (Random(3, length=9), (4, 9, 9, 12), 0),
        (Random(3, length=9), (4, 9, 8, 12), 1),
        (Block(4), (4, 7, 5, 6), 2),
        (Block(4), (4, 7, 0, 3), 0),
        (Block(4), (4, 8, 0, 3), 0),
        (Block(4), (4, 8, 4, 5), 1),
        (Window(4) & Causal(), (9, 9, 6, 9), 2),
        (Window(4) & Causal(), (9, 9, 10, 12), 0),
        (Window(4) | Global(1), (9, 9, 0, 0), 2),
        (Window(4) | Global(1), (9, 9, 1, 5), 0),
        (PerHead((Window(4), Causal())), (9, 9, 6, 9), 2),
        (PerHead((Window(4), Causal())), (9, 9, 0, 5), 1),
        (PerHead((Window(4), Causal())), (9, 9, 13, 14), 0),
    ],
    ids=repr,
)
def test_what_corners_can_tell(pattern, corners, want):
    assert int(pattern.bounds(*map(torch.tensor, corners))) == want


@pytest.mark.parametrize("pattern", ALL, ids=repr)
def test_bounds_broadcast(pattern):
    """Rows of rectangles against columns of rectangles, as a layout asks."""
    q, k = torch.arange(0, 60, 6)[:, None], torch.arange(0, 60, 5)[None]
    got = pattern.bounds(q, q + 5, k, k + 4).expand(10, 12)
    for row in (0, 3, 9):
        for column in (0, 5, 11):
            corners = (q[row], q[row] + 5, k[:, column], k[:, column] + 4)
            assert int(pattern.bounds(*corners)) == int(got[row, column])
