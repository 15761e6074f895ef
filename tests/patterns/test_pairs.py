"""Counts of a pattern, against the mask itself."""

from __future__ import annotations

from collections import Counter

import pytest

from suffice.patterns import Causal, Dilated, Full, Global, Pattern, Random, Strided, Window
from suffice.patterns.base import residues

from .values import ALL

SIZES = [(1, 9), (9, 9), (20, 7), (66, 67), (67, 67)]


def count(mask):
    """Pairs that some head sees."""
    return int((mask if mask.dim() == 2 else mask.any(dim=0)).sum())


@pytest.mark.parametrize("pattern", ALL, ids=repr)
def test_pairs_count_the_mask(pattern):
    for sizes in SIZES:
        assert pattern.pairs(*sizes) == count(pattern.mask(*sizes)), sizes


@pytest.mark.parametrize("pattern", ALL, ids=repr)
def test_pairs_of_each_head(pattern):
    heads = pattern.heads or 2
    for sizes in [(9, 9), (7, 20)]:
        mask = pattern.mask(*sizes).expand(heads, *sizes)
        counts = [part.pairs(*sizes) for part in pattern.of_heads(heads)]
        assert counts == mask.sum(dim=(1, 2)).tolist()


@pytest.mark.parametrize(
    "pattern",
    [
        Full(),
        Causal(),
        Window(100) & Causal(),
        Dilated(7, 64),
        (Window(64) | Strided(64)) & Causal(),
        Random(3) | Global(5),
    ],
    ids=repr,
)
@pytest.mark.parametrize("sizes", [(300, 300), (300, 40), (600, 10), (129, 257)], ids=str)
def test_pairs_of_many_blocks(pattern, sizes):
    assert pattern.pairs(*sizes) == count(pattern.mask(*sizes))


def test_long_inputs_are_counted_by_formula():
    """Too long for a mask; the sums are those of the definitions."""
    n = 32768
    assert (Window(256) & Causal()).pairs(n, n) == 256 * n - 256 * 255 // 2
    assert Window(256).pairs(n, n) == 511 * n - 256 * 255
    assert Global(16).pairs(n, n) == 16 * (2 * n - 16)
    assert Strided(64).pairs(n, n) == n * n // 64
    causal = sum(range(1, n // 64 + 1)) * 64
    assert (Strided(64) & Causal()).pairs(n, n) == causal
    either = 64 * n - 64 * 63 // 2 + causal - n
    assert ((Window(64) | Strided(64)) & Causal()).pairs(n, n) == either
    assert Strided(n).pairs(n, n) == n


@pytest.mark.parametrize("sizes", [(67, 67), (30, 67), (1, 67), (20, 7)], ids=str)
@pytest.mark.parametrize("stride", [2, 5, 64, 100])
def test_residues_share_out_the_positions(stride, sizes):
    queries, keys = sizes
    found = residues(Dilated(3, stride), queries, keys)
    want = Counter()
    for residue in range(stride):
        rows = sum(t % stride == residue for t in range(keys - queries, keys))
        columns = len(range(residue, keys, stride))
        if rows and columns:
            want[Window(3).every(1, 0), rows, columns] += 1
    sized = Counter({(n, m): 0 for _, n, m in found})
    for (part, n, m), times in found.items():
        assert (part.mask(9, 9) == Window(3).mask(9, 9)).all()
        sized[n, m] += times
    assert sized == Counter({(n, m): times for (_, n, m), times in want.items()})


@pytest.mark.parametrize("pattern", ALL, ids=repr)
def test_every_so_many_positions(pattern):
    """What is left of the mask when only each step-th row and column is kept."""
    mask = pattern.mask(67, 67)
    for step, first in [(1, 0), (2, 0), (2, 1), (3, 2), (5, 1), (16, 0), (16, 15)]:
        want = mask[..., first::step, first::step]
        part = pattern.every(step, first)
        assert (part.mask(*want.shape[-2:]) == want).all()
        assert (part.causal, part.heads) == (pattern.causal, pattern.heads)


@pytest.mark.parametrize("pattern", ALL, ids=repr)
def test_among_its_own_residues_a_pattern_has_no_spacing(pattern):
    assert pattern.every(pattern.spacing, 0).spacing == 1


@pytest.mark.parametrize("pattern", ALL, ids=repr)
def test_pairs_lie_at_multiples_of_the_spacing(pattern):
    for *_, t, s in pattern.mask(67, 67).nonzero().tolist():
        assert (t - s) % pattern.spacing == 0


@pytest.mark.parametrize("pattern", ALL, ids=repr)
def test_terms_make_up_the_pattern(pattern):
    mask = pattern.mask(67, 67)
    terms = pattern.terms()
    assert all(isinstance(term, Pattern) for term in terms)
    union = terms[0].mask(67, 67)
    for term in terms[1:]:
        union = union | term.mask(67, 67)
    assert (union == mask).all()


def test_unions_are_taken_out():
    assert ((Window(3) | Strided(4)) & Causal()).terms() == (
        Window(3) & Causal(),
        Strided(4) & Causal(),
    )
    assert (Window(3) | (Strided(4) | Global(1))).terms() == (Window(3), Strided(4), Global(1))
    assert (Window(3) & Causal()).terms() == (Window(3) & Causal(),)
    assert len(((Window(3) | Global(1)) & (Strided(4) | Full())).terms()) == 4
