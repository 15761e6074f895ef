"""A pattern that a user writes: a frozen dataclass with `allowed`, and all else follows."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from suffice import Attention
from suffice.patterns import Block, Causal, Pattern, PerHead, Window
from suffice.spec.cost import computed_pairs
from suffice.testing import conform, spec_around


@dataclass(frozen=True)
class Adjacent(Pattern):
    """It speaks of distances: padding must not widen them."""

    def allowed(self, q_positions, k_positions):
        return (q_positions - k_positions).abs() < 2


@dataclass(frozen=True)
class Doubling(Pattern):
    """Distances 0, 1, 2, 4, 8, ...: it has a setting and is causal."""

    base: int = 2

    causal = True

    def allowed(self, q_positions, k_positions):
        distance = q_positions - k_positions
        seen = distance == 0
        for power in range(20):
            seen = seen | (distance == self.base**power)
        return seen


@dataclass(frozen=True)
class Gapped(Pattern):
    """It knows of its gaps, and says so."""

    spacing = 3

    def allowed(self, q_positions, k_positions):
        distance = q_positions - k_positions
        return (distance % 3 == 0) & (distance % 2 == 1)


@dataclass(frozen=True)
class Widening(Pattern):
    """Head h has a window of 1, 2, 4, 8: heads that differ, in one predicate."""

    heads = 4

    def allowed(self, q_positions, k_positions):
        size = 2 ** torch.arange(4, device=q_positions.device)[:, None, None]
        return (q_positions - k_positions).abs() < size


@pytest.fixture(autouse=True, scope="module")
def tables():
    yield
    for name in ("Adjacent", "Doubling", "Gapped", "Widening"):
        Pattern.table.pop(name, None)


OWN = [Adjacent(), Doubling(), Doubling(3), Gapped(), Widening()]
COMPOSED = [
    Adjacent() & Causal(),
    Adjacent() | Causal(),
    Gapped() | Adjacent(),
    Block(2, Adjacent()),
    Block(2, Widening()),
    Widening() & Causal(),
    PerHead((Adjacent(), Gapped())) | Causal(),
    PerHead((Adjacent(), Doubling())),
]


@pytest.mark.parametrize("pattern", [*OWN, *COMPOSED], ids=repr)
def test_it_is_masked_laid_out_and_counted(pattern):
    for queries, keys in [(1, 1), (9, 9), (30, 67), (67, 67)]:
        mask = pattern.mask(queries, keys)
        heads = mask if mask.dim() == 3 else mask[None]
        assert pattern.pairs(queries, keys) == int(heads.any(dim=0).sum())
        touched = pattern.layout(queries, keys, 16).touched
        for row, rows in enumerate(heads.split(16, dim=1)):
            for column, cell in enumerate(rows.split(16, dim=2)):
                assert int(touched[row, column]) == int(cell.any()) + int(cell.all())
        counts = [part.pairs(queries, keys) for part in pattern.of_heads(len(heads))]
        assert counts == heads.sum(dim=(1, 2)).tolist()


@pytest.mark.parametrize(
    "pattern", [Adjacent(), Adjacent() & Causal(), Adjacent() | Causal()], ids=repr
)
def test_it_keeps_every_promise(pattern):
    conform(spec_around(pattern), length=6)


@pytest.mark.parametrize("pattern", [Doubling(), Gapped(), Block(2, Adjacent())], ids=repr)
def test_it_trains_like_its_mask(pattern):
    layer = Attention(spec_around(pattern), dtype=torch.float64)
    x = torch.randn(2, 11, 8, dtype=torch.float64, requires_grad=True)
    layer(x).square().sum().backward()
    assert torch.isfinite(x.grad).all()
    assert (x.grad != 0).any()


def test_its_cost_is_counted():
    spec = spec_around(Widening(), num_heads=4)
    seen = sum(Window(size).pairs(300, 300) for size in (1, 2, 4, 8))
    assert spec.cost(300).visible_flops == 4 * 2 * 300 * 64 + 4 * 2 * seen
    blocks = sum(computed_pairs(Window(size), 300, 300) for size in (1, 2, 4, 8))
    assert spec.cost(300).flops == 4 * 2 * 300 * 64 + 4 * 2 * blocks


def test_its_heads_are_patterns_of_their_own():
    heads = Widening().of_heads(4)
    q, k = torch.arange(9)[:, None], torch.arange(9)[None]
    for head, size in zip(heads, (1, 2, 4, 8), strict=True):
        assert torch.equal(head.mask(9, 9), Window(size).mask(9, 9))
        batch = head.allowed(q.expand(2, 1, 9, 1), k.expand(2, 1, 1, 9))
        assert torch.equal(batch, Window(size).mask(9, 9).expand(2, 1, 9, 9))
        assert (head.heads, head.causal, head.dense, head.crosses) == (None, False, False, False)
        assert (head.max_length, head.spacing) == (None, 1)
    assert (Widening() & Causal()).of_heads(4)[1].causal
    assert len(set(heads)) == 4


def test_its_gaps_are_used():
    """Residues of 3 are dense: fewer blocks than it touches in the order of positions."""
    assert (
        computed_pairs(Gapped(), 600, 600)
        < 600 * 600
        == min(600 * 600, 64 * 64 * int((Gapped().layout(600, 600, 64).touched > 0).sum()))
    )
    assert Gapped().pairs(600, 600) == int(Gapped().mask(600, 600).sum())
