"""Tiles: views and gathers of indices, and every allowed pair in exactly one tile."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from suffice.ops.sparse.plan import cut
from suffice.ops.sparse.tiles import MIN_BLOCK, Gathered, Indices
from suffice.patterns import (
    Block,
    Causal,
    Dilated,
    Fixed,
    Full,
    Global,
    Pattern,
    Random,
    Strided,
    Window,
)
from suffice.testing import assert_close, normal


@dataclass(frozen=True)
class WideRows(Pattern):
    """Two queries of one row of blocks see all keys, with others between them that do not."""

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        return (q == 3) | (q == 40) | ((q - k).abs() < 3)


RUNS = [
    Indices(3, 1, 0, 5),
    Indices(0, 4, 6, 6),
    Indices(1, 5, 3, 7),  # tiles overlap
    Indices(0, 3, 4, 5),  # the last shift is shorter
    Indices(2, 4, 0, 6),  # the same indices for every tile
    Indices(1, 4, 1, 5, 4),  # residues
    Indices(0, 3, 8, 4, 4),  # tiles of one residue that overlap
    Gathered(torch.tensor([[0, 16], [8, 0], [3, 19]]), 5),
    Gathered(torch.tensor([[0, 16], [0, 20]]), MIN_BLOCK),
]


@pytest.mark.parametrize("run", RUNS, ids=repr)
def test_a_view_holds_the_indices(run):
    x = normal(2, 3, 30, 2, seed=1)
    want = x[:, :, run.index()]
    assert_close(run.view(x), want, "exact")
    apart = x.transpose(1, 2).contiguous().transpose(1, 2)[:, 1:]
    assert_close(run.view(apart), want[:, 1:], "exact")
    assert run.index().shape == (run.tiles, run.count)


@pytest.mark.parametrize("run", RUNS, ids=repr)
def test_adding_is_the_transpose_of_viewing(run):
    tiles = normal(2, 3, run.tiles, run.count, 2, seed=2)
    total = normal(2, 3, 30, 2, seed=3)
    want = total.index_add(2, run.index().flatten(), tiles.flatten(2, 3))
    run.add(total, tiles)
    assert_close(total, want)


@pytest.mark.parametrize("run", RUNS, ids=repr)
def test_some_tiles_of_a_run(run):
    last = run.tiles
    assert torch.equal(run.part(last - 1, last).index(), run.index()[last - 1 :])


PATTERNS = [
    Window(5) & Causal(),
    Window(70) & Causal(),
    Window(33),
    Window(20) | Global(3),
    (Window(20) | Global(70)) & Causal(),
    Dilated(9, 3),
    Dilated(40, 2) & Causal(),
    Strided(7) & Causal(),
    (Window(16) | Strided(16)) & Causal(),
    Strided(4) | Strided(6) | Window(4),
    (Block(64) | Fixed(64)) & Causal(),
    (Block(32) | Fixed(32, 5)) & Causal(),
    Fixed(9, 2),
    Block(16, Window(2) | Random(2, length=40) | Global(1)),
    Block(64, Random(3)),
    Random(3),
    Global(1),
    Global(1) & Window(3),
    Causal(),
    Full(),
]


def computed(parts, queries: int, keys: int) -> torch.Tensor:
    """How often each pair is computed."""
    count = torch.zeros(queries, keys, dtype=torch.long)
    for part in parts:
        q, k = part.queries.index()[..., None], part.keys.index()[:, None]
        shape = (part.queries.tiles, part.queries.count, part.keys.count)
        mask = torch.ones(shape, dtype=torch.bool)
        if part.allowed is not None:
            mask = part.allowed.expand(shape)
        count.index_put_((q.expand(shape)[mask], k.expand(shape)[mask]), torch.tensor(1), True)
    return count


@pytest.mark.parametrize("pairs", [1 << 20, 1 << 10], ids=["whole", "pieces"])
@pytest.mark.parametrize("speed", [0.1, 100.0], ids=["low", "tall"])
@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_every_allowed_pair_lies_in_exactly_one_tile(pattern, speed, pairs, monkeypatch):
    monkeypatch.setattr("suffice.ops.sparse.tiles.PAIRS_AT_ONCE", pairs)
    cut.cache_clear()  # before, and what these pieces made is equal
    for queries, keys in ((1, 1), (9, 9), (64, 64), (65, 65), (130, 301), (577, 577)):
        tiles = cut(pattern, queries, keys, speed)
        want = pattern.mask(queries, keys).long()
        assert torch.equal(computed(tiles.parts, queries, keys), want), (queries, keys)
        covered = torch.zeros(queries, dtype=torch.bool)
        for part, fresh in zip(tiles.parts, tiles.fresh, strict=True):
            index = part.queries.index().flatten()
            assert fresh == (not covered[index].any())
            covered[index] = True
        assert tiles.complete == bool(covered.all())


def test_rows_that_read_much_more_are_cut_run_by_run():
    length = 900  # so that few rows of blocks read most columns
    tiles = cut(WideRows(), length, length)
    want = WideRows().mask(length, length).long()
    assert torch.equal(computed(tiles.parts, length, length), want)


def test_a_long_sequence_of_residues_is_cut_too():
    pattern = Dilated(6, 2) & Causal()
    tiles = cut(pattern, 2100, 2100)
    assert torch.equal(computed(tiles.parts, 2100, 2100), pattern.mask(2100, 2100).long())
    assert tiles.pairs < 2100 * 2100 / 8


@pytest.mark.parametrize(
    ("pattern", "length", "share"),
    [
        (Window(256) & Causal(), 4096, 0.09),
        (Window(257) | Global(16), 4096, 0.18),
        ((Window(64) | Strided(64)) & Causal(), 4096, 0.06),
        (Block(64, Window(2) | Global(2) | Random(3, length=64)), 2048, 0.3),
        ((Block(64) | Fixed(64)) & Causal(), 2048, 0.06),
    ],
    ids=repr,
)
def test_little_more_than_the_pattern_is_computed(pattern, length, share):
    tiles = cut(pattern, length, length)
    assert tiles.pairs < share * length**2
    assert len(tiles.parts) < 24


def test_tiles_alike_share_a_mask():
    parts = cut(Window(256) & Causal(), 4096, 4096).parts
    assert max(len(part.allowed) for part in parts if part.allowed is not None) == 1
    blocks = cut(Block(64, Window(2)), 4096, 4096).parts
    assert all(part.allowed is None for part in blocks)
