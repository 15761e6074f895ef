"""Blocks and counts of a pattern, against the mask itself."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from suffice import attend
from suffice.errors import ConfigError
from suffice.patterns import And, Causal, Full, Or, Pattern
from suffice.testing import assert_close, conform, normal, spec_around


@dataclass(frozen=True)
class Stripe(Pattern):
    """A test's own pattern: every third key."""

    def allowed(self, q_positions, k_positions):
        return (k_positions % 3 == 0) & (q_positions >= 0)


@dataclass(frozen=True)
class Near(Pattern):
    """A test's own pattern that speaks of distances: padding must not widen them."""

    def allowed(self, q_positions, k_positions):
        return (q_positions - k_positions).abs() < 2


@pytest.fixture(autouse=True, scope="module")
def tables():
    yield
    for name in ("Stripe", "Near"):
        Pattern.table.pop(name, None)


PATTERNS = [Full(), Causal(), Full() & Causal(), Causal() | Full(), Stripe(), Stripe() & Causal()]
SIZES = [(1, 1), (1, 9), (9, 9), (5, 2), (7, 20), (20, 7)]


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("block", [1, 2, 3, 4, 64])
def test_layout_tells_none_some_or_all(pattern, sizes, block):
    queries, keys = sizes
    mask = pattern.mask(queries, keys)
    layout = pattern.layout(queries, keys, block)
    assert layout.block == block
    for row, part in enumerate(mask.split(block)):
        for column, cell in enumerate(part.split(block, dim=1)):
            want = 2 if cell.all() else int(cell.any())
            assert int(layout.touched[row, column]) == want
    assert layout.touched.shape == (-(-queries // block), -(-keys // block))


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
@pytest.mark.parametrize("sizes", [*SIZES, (300, 300), (300, 40), (600, 10)], ids=str)
def test_pairs_count_the_mask(pattern, sizes):
    assert pattern.pairs(*sizes) == int(pattern.mask(*sizes).sum())


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_mask_is_allowed_of_last_positions(pattern):
    q, k = torch.arange(4, 9), torch.arange(9)
    assert torch.equal(pattern.mask(5, 9), pattern.allowed(q[:, None], k[None]).expand(5, 9))


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_positions_of_each_row_of_a_batch(pattern):
    q, k = torch.tensor([[3, 1], [0, 7]]), torch.tensor([[0, 3, 2], [7, 1, 0]])
    got = pattern.allowed(q[:, None, :, None], k[:, None, None, :]).expand(2, 1, 2, 3)
    for b in range(2):
        for t in range(2):
            for s in range(3):
                one = pattern.allowed(q[b, t], k[b, s])
                assert bool(got[b, 0, t, s]) == bool(one)


def test_facts():
    assert [p.causal for p in PATTERNS] == [False, True, True, False, False, True]
    assert [p.dense for p in PATTERNS] == [True, True, True, True, False, False]
    assert (Stripe() | Full()).dense
    assert not (Stripe() | Stripe()).dense


def test_patterns_are_values():
    assert Full() & Causal() == And((Full(), Causal()))
    assert hash(Full() | Causal()) == hash(Or((Full(), Causal())))
    assert Full() & Causal() != Causal() & Full()


@pytest.mark.parametrize("parts", [(), (Full(),), (Full(), "causal"), (Full(), Causal)], ids=str)
@pytest.mark.parametrize("combined", [And, Or])
def test_combinations_need_two_patterns(combined, parts):
    with pytest.raises(ConfigError, match=f"{combined.__name__} combines two or more patterns"):
        combined(parts)


@pytest.mark.parametrize("pattern", [Near(), Near() & Causal(), Near() | Causal()], ids=repr)
def test_a_user_pattern_keeps_every_promise(pattern):
    conform(spec_around(pattern), length=6)


def test_a_user_pattern_attends_as_its_mask():
    q, k, v = (normal(1, 2, n, 4, seed=n) for n in (5, 9, 9))
    want = attend(q, k, v, mask=Stripe().mask(5, 9)[None, None])
    for impl in ("fused", "matmul", "reference"):
        assert_close(attend(q, k, v, pattern=Stripe(), impl=impl), want)
