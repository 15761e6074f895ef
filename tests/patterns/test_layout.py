"""Blocks of a pattern, against the mask itself."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pytest
import torch
import torch.nn.functional as F

from suffice.patterns import Causal, Full, Global, Pattern, Random, Window
from suffice.patterns.base import count_blocks

from .values import ALL, COMPOSED, SAMPLES

LARGE = 32768


@dataclass(frozen=True)
class Stripe(Pattern):
    """A test's own pattern: every third key."""

    def allowed(self, q_positions, k_positions):
        return (k_positions % 3 == 0) & (q_positions >= 0)


@dataclass(frozen=True)
class Scattered(Pattern):
    """A test's own pattern: a table of random pairs."""

    seed: int
    share: float

    def allowed(self, q_positions, k_positions):
        generator = torch.Generator().manual_seed(self.seed)
        table = torch.rand(70, 70, generator=generator) < self.share
        return table[q_positions, k_positions]


@pytest.fixture(autouse=True, scope="module")
def tables():
    yield
    for name in ("Stripe", "Scattered"):
        Pattern.table.pop(name, None)


OWN = [Stripe(), Stripe() & Causal(), Scattered(1, 0.02), Scattered(2, 0.97), Scattered(3, 0.999)]
PATTERNS = [*ALL, *OWN]
SIZES = [(1, 1), (1, 9), (9, 9), (5, 2), (7, 20), (20, 7)]


def blocks(mask, block):
    """0, 1 or 2 for none, some or all of each block: bool [H or nothing, T, S]."""
    heads = mask if mask.dim() == 3 else mask[None]
    padding = (0, -heads.shape[2] % block, 0, -heads.shape[1] % block)
    some, every = (
        F.pad(heads, padding, value=edge).unfold(1, block, block).unfold(2, block, block)
        for edge in (False, True)
    )
    return some.any(dim=(0, 3, 4)).to(torch.int8) + every.all(dim=4).all(dim=3).all(dim=0)


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_layout_tells_none_some_or_all(pattern):
    for sizes, block in product(SIZES, (1, 2, 3, 4, 64)):
        if min(sizes) < sizes[0] and pattern in OWN:
            continue  # a table has no negative positions
        layout = pattern.layout(*sizes, block)
        assert layout.block == block
        assert torch.equal(layout.touched, blocks(pattern.mask(*sizes), block))


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_layout_at_every_length(pattern):
    """The samples and own patterns at every third up to 67, all around every edge of a block."""
    spaced = 3 if pattern in (*SAMPLES, *OWN) else 67
    for length in (n for n in range(1, 68) if n % 16 in (15, 0, 1) or n % spaced == 0):
        queries = length if length % 2 else 1 + length // 3
        want = blocks(pattern.mask(queries, length), 16)
        assert torch.equal(pattern.layout(queries, length, 16).touched, want), length


@pytest.mark.parametrize("pattern", COMPOSED, ids=repr)
@pytest.mark.parametrize("pieces", [1, 100, 5000], ids=str)
def test_pieces_change_nothing(pattern, pieces, monkeypatch):
    """However few pairs are asked at a time."""
    monkeypatch.setattr("suffice.patterns.base.PAIRS_AT_ONCE", pieces)
    monkeypatch.setattr("suffice.patterns.base.CACHED_BLOCKS", 0)
    for block in (7, 64):
        want = blocks(pattern.mask(30, 67), block)
        assert torch.equal(pattern.layout(30, 67, block).touched, want)
    assert pattern.pairs(30, 67) == int(_some_head(pattern.mask(30, 67)).sum())


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
@pytest.mark.parametrize("wide", [1, 16])
def test_what_is_halved_is_counted_as_the_blocks_are(pattern, wide, monkeypatch):
    monkeypatch.setattr("suffice.patterns.base.FIRST_GRID", wide)
    monkeypatch.setattr("suffice.patterns.base.COUNTING_BLOCK", 4)
    for queries, keys in [(1, 1), (3, 9), (30, 67)]:
        mask = pattern.mask(queries, keys)
        assert pattern.pairs(queries, keys) == int(_some_head(mask).sum())
        for block in (1, 4, 64):
            want = int((blocks(mask, block) > 0).sum())
            assert count_blocks(pattern, queries, keys, block) == want, (queries, keys, block)


def test_a_narrow_band_of_a_long_input_is_counted_along_its_edges(monkeypatch):
    """Neither its pairs nor its blocks are looked at one by one."""
    length, size, bounded = 1 << 17, 256, []

    def counting(self, *corners, bounds=Window.bounds):
        found = bounds(self, *corners)
        bounded.append(found.numel())
        return found

    monkeypatch.setattr(Window, "bounds", counting)
    band = Window(size) & Causal()
    assert band.pairs(length, length) == size * length - size * (size - 1) // 2
    rows = length // 64
    assert count_blocks(band, length, length, 64) == 5 * rows - 10
    assert sum(bounded) < 40 * rows


def _some_head(mask):
    return mask if mask.dim() == 2 else mask.any(dim=0)


@pytest.mark.parametrize("pattern", [Full(), Causal(), Window(2), Stripe(), Random(2)], ids=repr)
@pytest.mark.parametrize("sizes", [(0, 0), (0, 5), (5, 0)], ids=str)
def test_nothing_has_no_blocks(pattern, sizes):
    queries, keys = sizes
    assert pattern.layout(queries, keys, 4).touched.shape == (-(-queries // 4), -(-keys // 4))
    assert pattern.pairs(queries, keys) == 0


@pytest.mark.parametrize("pattern", [Stripe() & Causal(), Window(5) | Global(2)], ids=repr)
def test_equal_patterns_share_a_layout(pattern):
    again = type(pattern)(pattern.parts)
    assert pattern.layout(40, 40, 8) is again.layout(40, 40, 8)
    assert pattern.layout(40, 40, 8) is not pattern.layout(40, 41, 8)


def test_a_large_layout_is_not_kept(monkeypatch):
    monkeypatch.setattr("suffice.patterns.base.CACHED_BLOCKS", 24)
    assert Window(3).layout(40, 40, 8) is not Window(3).layout(40, 40, 8)
    assert Window(3).layout(32, 41, 8) is Window(3).layout(32, 41, 8)


def test_nothing_is_kept_while_a_graph_is_traced(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert Window(4).layout(40, 40, 8) is not Window(4).layout(40, 40, 8)


def test_a_layout_serves_training_and_any_default_device():
    with torch.inference_mode(), torch.device("meta"):
        touched, pairs = Window(7).layout(41, 43, 4).touched, Window(7).pairs(41, 43)
    assert not touched.is_inference()
    assert torch.equal(touched, blocks(Window(7).mask(41, 43), 4))
    assert pairs == int(Window(7).mask(41, 43).sum())


@pytest.fixture
def asked(monkeypatch):
    """The number of pairs in each answer of Window and Global."""
    numbers = []
    for value in (Window, Global):

        def counting(self, q, k, allowed=value.allowed):
            found = allowed(self, q, k)
            numbers.append(found.numel())
            return found

        monkeypatch.setattr(value, "allowed", counting)
    return numbers


@pytest.mark.parametrize(
    "pattern", [Window(257) & Causal(), Window(250), Window(256) | Global(17)], ids=repr
)
def test_few_pairs_of_a_long_input_are_evaluated(pattern, asked):
    """Only those of blocks at an edge, and never many at a time."""
    touched = pattern.layout(LARGE, LARGE, 64).touched
    assert 0 < sum(asked) < LARGE * LARGE / 100
    assert max(asked) <= 1 << 20
    queries = torch.tensor([0, 1, 100, 511])
    for row in queries.tolist():
        part = pattern.allowed(
            torch.arange(64 * row, 64 * row + 64)[:, None], torch.arange(LARGE)[None]
        )
        assert torch.equal(touched[row : row + 1], blocks(part, 64))


@pytest.mark.parametrize("pattern", ALL, ids=repr)
def test_positions_of_each_row_of_a_batch(pattern):
    q, k = torch.tensor([[3, 1], [0, 7]]), torch.tensor([[0, 3, 2], [7, 1, 0]])
    heads = pattern.heads or 1
    got = pattern.allowed(q[:, None, :, None], k[:, None, None, :])
    assert got.shape == (2, heads, 2, 3)
    for b in range(2):
        for t in range(2):
            for s in range(3):
                one = pattern.allowed(q[b, t].view(1, 1), k[b, s].view(1, 1))
                assert torch.equal(got[b, :, t, s], one.expand(heads, 1, 1).flatten())
