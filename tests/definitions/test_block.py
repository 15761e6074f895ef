"""Block(size, over): query t sees key s iff `over` lets block t // size see block s // size."""

from __future__ import annotations

import pytest

from suffice import AttentionSpec
from suffice.patterns import Block, Causal, Full, Global, Random, Window
from suffice.testing import assert_close, normal

from .loops import built, causal, everything, gradients_agree, outputs, visible

SHAPES = [(1, 1), (1, 9), (3, 9), (9, 9), (23, 23)]
OVER = {
    "diagonal": (Window(1), lambda a, b: a == b),
    "neighbours": (Window(2), lambda a, b: abs(a - b) <= 1),
    "global": (Global(2), lambda a, b: a < 2 or b < 2),
    "causal": (Causal(), lambda a, b: b <= a),
    "either": (Window(2) | Global(1), lambda a, b: abs(a - b) <= 1 or a == 0 or b == 0),
    "both": (Window(2) & Causal(), lambda a, b: 0 <= a - b <= 1),
    "nested": (Block(2), lambda a, b: a // 2 == b // 2),
    "full": (Full(), everything),
}


def of_blocks(size, see):
    return lambda t, s: see(t // size, s // size)


@pytest.mark.parametrize("size", [1, 3, 4, 30])
@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("is_causal", [False, True])
def test_visible_pairs(size, over, is_causal):
    inner, see = OVER[over]
    pattern, see = Block(size, inner), of_blocks(size, see)
    if is_causal:
        pattern, see = pattern & Causal(), causal(see)
    for queries, keys in SHAPES:
        table = visible(see, queries, keys)
        assert pattern.mask(queries, keys).tolist() == table
        assert pattern.pairs(queries, keys) == sum(map(sum, table))


@pytest.mark.parametrize("size", [2, 3])
def test_blocks_that_are_causal_let_a_token_see_the_rest_of_its_block(size):
    assert Block(size, Causal()).mask(5, 5)[0, :size].all()
    assert not Block(size, Causal()).causal
    assert (Block(size, Causal()) & Causal()).causal


def test_block_diagonal_unless_given():
    assert Block(3) == Block(3, Window(1))


def test_random_blocks_are_whole_blocks():
    """The blocks of a row are those the pattern over blocks draws."""
    over = Random(2, length=6, seed=3)
    blocks = over.mask(6, 6)
    mask = Block(4, over).mask(23, 23)
    table = [[bool(blocks[t // 4, s // 4]) for s in range(23)] for t in range(23)]
    assert mask.tolist() == table
    assert blocks.sum(dim=1).tolist() == [2] * 6


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("over", ["diagonal", "either"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_layer(length, size, over, is_causal):
    inner, see = OVER[over]
    pattern, see = Block(size, inner), of_blocks(size, see)
    if is_causal:
        pattern, see = pattern & Causal(), causal(see)
    spec = AttentionSpec(d_model=8, num_heads=4, num_kv_heads=2, pattern=pattern)
    layer, x = built(spec), normal(2, length, 8, seed=length)
    assert_close(layer(x), outputs(layer, x, see))


def test_gradient():
    layer = built(AttentionSpec(d_model=4, num_heads=2, pattern=Block(2) & Causal()))
    assert gradients_agree(layer, normal(2, 5, 4, seed=1))
