"""What a pattern knows of whole rectangles of pairs, and of every n-th position, is never wrong."""

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

SIZE = 13
PATTERNS = [
    Full(),
    Causal(),
    Window(1),
    Window(4),
    Window(3) & Causal(),
    Dilated(3, 2),
    Dilated(2, 5),
    Dilated(3, 1),
    Strided(1),
    Strided(3),
    Strided(4) & Causal(),
    Fixed(1),
    Fixed(4),
    Fixed(5, 3),
    Fixed(3, 3),
    Global(1),
    Global(4) & Causal(),
    Random(2, length=SIZE, seed=1),
    Random(2, seed=1),
    Block(3),
    Block(2, Window(2) | Global(1)),
    Block(4, Causal()) & Causal(),
    Window(2) | Strided(4) | Global(2),
    (Dilated(3, 2) | Fixed(4)) & Causal(),
    PerHead((Window(3), Fixed(4, 2))),
    PerHead((Window(3), Full())) & Causal(),
]


def ranges():
    """First and last of every stretch within the positions."""
    return torch.tensor([(a, b) for a in range(SIZE) for b in range(a, SIZE)]).unbind(1)


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_rectangles(pattern):
    first, last = ranges()
    mask = pattern.mask(SIZE, SIZE).view(-1, SIZE, SIZE)
    known = pattern.bounds(first[:, None], last[:, None], first[None], last[None])
    known = known.expand(len(first), len(first))
    # Sums over rectangles from sums over prefixes; every head alike for "every", any for "none".
    total = torch.zeros(len(mask), SIZE + 1, SIZE + 1, dtype=torch.long)
    total[:, 1:, 1:] = mask.long().cumsum(1).cumsum(2)
    top, bottom, left, right = first[:, None], last[:, None] + 1, first[None], last[None] + 1
    count = total[:, bottom, right] - total[:, top, right] - total[:, bottom, left]
    count = count + total[:, top, left]
    area = (bottom - top) * (right - left)
    assert (count[:, known == 0] == 0).all()
    assert (count == area)[:, known == 2].all()
    assert known.ge(0).all()
    assert known.le(2).all()


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_every_so_many_positions(pattern, step):
    mask = pattern.mask(SIZE, SIZE)
    for first in range(step):
        places = torch.arange(first, SIZE, step)
        count = torch.arange(len(places))
        got = pattern.every(step, first).allowed(count[:, None], count[None])
        want = mask[..., places, :][..., places]
        assert torch.equal(got.expand(want.shape), want)


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
@pytest.mark.parametrize(("queries", "keys"), [(13, 13), (4, 13), (1, 13)])
def test_parts_are_the_whole(pattern, queries, keys):
    """`terms` are patterns whose union is the pattern; `spacing` divides every distance."""
    mask = pattern.mask(queries, keys)
    union = torch.zeros_like(mask)
    for term in pattern.terms():
        union |= term.mask(queries, keys)
    assert torch.equal(union, mask)
    distance = (torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)).expand(mask.shape)
    assert (distance[mask] % pattern.spacing == 0).all()
    heads = mask.view(-1, queries, keys)
    parts = [p.mask(queries, keys) for p in pattern.of_heads(len(heads))]
    assert all(torch.equal(part, head) for part, head in zip(parts, heads, strict=True))
