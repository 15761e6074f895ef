"""Who sees whom: each pattern against its formula, in masks, counts, layers and gradients.

`pattern & Causal()` sees the same pairs without those that look ahead.
"""

from __future__ import annotations

import pytest
import torch

from suffice import AttentionSpec, attend, preset
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
from suffice.testing import assert_close, normal

from .loops import (
    built,
    causal,
    everything,
    gradients_agree,
    head,
    outputs,
    tensor,
    up_to_self,
    visible,
)

SHAPES = [(1, 1), (1, 9), (3, 9), (9, 9), (23, 23), (5, 2)]


def window(size):
    return lambda t, s: -size < t - s < size


def dilated(size, dilation):
    distances = {step * dilation for step in range(size)}
    return lambda t, s: abs(t - s) in distances


def strided(stride):
    return lambda t, s: (t - s) % stride == 0


def fixed(stride, tail):
    """A^(2) of the fixed pattern: j mod l in {l - c, ..., l - 1}."""
    return lambda t, s: s % stride in range(stride - tail, stride)


def hubs(tokens):
    return lambda t, s: t < tokens or s < tokens


def block(size, see):
    return lambda t, s: see(t // size, s // size)


def both(first, second):
    return lambda t, s: first(t, s) and second(t, s)


def either(first, second):
    return lambda t, s: first(t, s) or second(t, s)


OVER = {
    Window(1): window(1),
    Window(2): window(2),
    Global(2): hubs(2),
    Causal(): up_to_self,
    Window(2) | Global(1): either(window(2), hubs(1)),
    Window(2) & Causal(): causal(window(2)),
    Block(2): block(2, window(1)),
    Full(): everything,
}
PARTS = (Window(2), Strided(3), Global(1), Full())
SEES = [window(2), strided(3), hubs(1), everything]
DISTANCES = [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2), (2, 4), (4, 3), (3, 30)]
TAILS = [(1, 1), (2, 1), (4, 1), (4, 2), (5, 3), (5, 5), (40, 1)]
PATTERNS = {
    Full(): everything,
    Causal(): up_to_self,
    Full() | Causal(): everything,
    Causal() | Causal(): up_to_self,
    **{Window(size): window(size) for size in (1, 2, 3, 4, 9, 20)},
    **{Dilated(*sizes): dilated(*sizes) for sizes in DISTANCES},
    **{Strided(stride): strided(stride) for stride in (1, 2, 3, 7, 40)},
    **{Fixed(*sizes): fixed(*sizes) for sizes in TAILS},
    **{Global(tokens): hubs(tokens) for tokens in (1, 2, 5, 30)},
    **{Block(size, over): block(size, OVER[over]) for size in (1, 3, 4, 30) for over in OVER},
    Global(2) | Window(2): either(hubs(2), window(2)),
    PerHead(PARTS): SEES,
    PerHead(PARTS[:2]) | Global(1): [either(see, hubs(1)) for see in SEES[:2]],
    PerHead(PARTS[:2]) & PerHead((Causal(), Block(4))): [
        causal(SEES[0]),
        both(SEES[1], block(4, window(1))),
    ],
    PerHead((Causal(), Window(2) & Causal())): [up_to_self, causal(window(2))],
}
CAUSAL = (Causal(), Causal() | Causal(), PerHead((Causal(), Window(2) & Causal())))
LAYERS = (
    Causal(), Window(1), Window(3), Dilated(2, 2), Strided(2), Strided(40), Fixed(4, 2),
    Fixed(40, 1), Global(1), Global(30), Block(3, Window(1)), Block(4, Window(2) | Global(1)),
    Global(2) | Window(2), PerHead(PARTS),
)  # fmt: skip
ahead = pytest.mark.parametrize("is_causal", [False, True])


def posed(pattern, is_causal):
    """The pattern and its predicate, or one for each head."""
    see = PATTERNS[pattern]
    if not is_causal:
        return pattern, see
    return pattern & Causal(), [causal(one) for one in see] if pattern.heads else causal(see)


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
@ahead
def test_visible_pairs(pattern, is_causal):
    pattern, see = posed(pattern, is_causal)
    for queries, keys in SHAPES:
        sees = see if pattern.heads else [see]
        tables = [visible(one, queries, keys) for one in sees]
        assert pattern.mask(queries, keys).tolist() == (tables if pattern.heads else tables[0])
        assert pattern.pairs(queries, keys) == torch.tensor(tables).any(dim=0).sum()
    assert pattern.causal is (is_causal or pattern in CAUSAL)


@pytest.mark.parametrize("pattern", LAYERS, ids=repr)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@ahead
def test_layers_attend_to_what_is_seen(pattern, kv_heads, is_causal):
    """A query that sees nothing has 0 from its heads, so its output is b_O."""
    pattern, see = posed(pattern, is_causal)
    layer = built(AttentionSpec(d_model=8, num_heads=4, num_kv_heads=kv_heads, pattern=pattern))
    for length in (1, 2, 5, 9):
        x = normal(2, length, 8, seed=length)
        assert_close(layer(x), outputs(layer, x, see))


@pytest.mark.parametrize("pattern", LAYERS, ids=repr)
@ahead
def test_gradient(pattern, is_causal):
    layer = built(AttentionSpec(d_model=4, num_heads=4, pattern=posed(pattern, is_causal)[0]))
    assert gradients_agree(layer, normal(2, 5, 4, seed=1))


@pytest.mark.parametrize("pattern", [Full(), Causal(), Full() | Causal(), PerHead(PARTS)], ids=repr)
@pytest.mark.parametrize("queries", [1, 4, 9])
@pytest.mark.parametrize("keys", [1, 5, 9])
def test_queries_stand_last_among_the_keys(pattern, queries, keys):
    q, k, v = (normal(1, h, n, 3, seed=n) for h, n in ((4, queries), (2, keys), (2, keys)))
    got, past = attend(q, k, v, pattern=pattern), keys - queries
    sees = PATTERNS[pattern] if pattern.heads else [PATTERNS[pattern]] * 4
    for h, see in enumerate(sees):
        rows = [q[0, h].tolist(), k[0, h // 2].tolist(), v[0, h // 2].tolist()]
        want = head(*rows, lambda t, s, see=see: see(past + t, s), 3**-0.5)
        assert_close(got[:, h], tensor([want]))


def test_positions_far_away_and_out_of_order():
    q, k = torch.tensor([10**12, 7, 10**12 + 2]), torch.tensor([8, 10**12 + 1, 3, 5])
    for size in (1, 3):
        want = [[window(size)(t, s) for s in k.tolist()] for t in q.tolist()]
        assert Window(size).allowed(q[:, None], k[None]).tolist() == want


def test_random_blocks_are_whole_blocks():
    """The blocks of a row are those the pattern over blocks draws."""
    over = Random(2, length=6, seed=3)
    blocks = over.mask(6, 6)
    table = visible(block(4, lambda a, b: bool(blocks[a, b])), 23, 23)
    assert Block(4, over).mask(23, 23).tolist() == table
    assert blocks.sum(dim=1).tolist() == [2] * 6


@pytest.mark.parametrize("mechanism", ["standard", "optimised", "efficient", "super_attention"])
def test_nothing_later_moves_an_output(mechanism):
    options = {"length": 9} if mechanism == "super_attention" else {}
    layer = built(preset(mechanism, 6, 2, causal=True, **options))
    x = normal(2, 9, 6, seed=1)
    whole = layer(x)
    for length in range(1, 9):
        assert_close(layer(x[:, :length]), whole[:, :length])
        other = x.clone()
        other[:, length:] = 1e3
        assert_close(layer(other)[:, :length], whole[:, :length])
