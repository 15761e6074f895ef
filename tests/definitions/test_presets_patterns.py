"""Who sees whom in the sparse mechanisms, by loops from their papers, in our reading of each.

Causal presets are the same pairs without those that look ahead.
"""

from __future__ import annotations

import pytest

from suffice import preset
from suffice.patterns import Random
from suffice.testing import assert_close, normal

from .loops import built, causal, gradients_agree, outputs, tensor, visible
from .rotations import of_layer, plain

LENGTHS = (1, 2, 3, 7, 16, 33, 50)


def sees_of(spec, queries, keys):
    """The tables of all heads as lists."""
    mask = spec.pattern.mask(queries, keys)
    heads = mask if mask.dim() == 3 else mask.expand(spec.num_heads, -1, -1)
    return heads.tolist()


def agree(spec, sees, lengths=LENGTHS):
    """Whether the pattern of each head is its predicate, for whole inputs and last queries."""
    shapes = [(n, n) for n in lengths] + [(1, lengths[-1]), (lengths[-1] // 2, lengths[-1])]
    return all(sees_of(spec, *shape) == [visible(see, *shape) for see in sees] for shape in shapes)


def in_reach(per_side):
    """Longformer 3.1, ETC 3.2: so many tokens on each side, and itself."""
    return lambda i, j: i - per_side <= j <= i + per_side


def longformer(per_side, hubs):
    """A window; tokens of the set G attend to all, and all attend to them (symmetric)."""
    chosen = set(range(hubs))
    return lambda i, j: i in chosen or j in chosen or in_reach(per_side)(i, j)


def etc(hubs, radius):
    """Four pieces: g2g, g2l and l2g see every pair, l2l a radius; global tokens stand first."""

    def see(i, j):
        from_global, to_global = i < hubs, j < hubs
        pieces = {
            (True, True): True,
            (True, False): True,
            (False, True): True,
            (False, False): abs((i - hubs) - (j - hubs)) <= radius,
        }
        return pieces[from_global, to_global]

    return see


def star(i, j):
    """A satellite reads itself, its two neighbours and the relay; the relay reads everything."""
    relay = 0
    if i == relay or j == relay:
        return True
    return j in (i - 1, i, i + 1)


def strided(length):
    """A^(1) = {t, ..., i}, t = max(0, i - l); A^(2) = {j: (i - j) mod l = 0}; both causal."""
    first = lambda i, j: max(0, i - length) <= j <= i  # noqa: E731
    second = lambda i, j: j <= i and (i - j) % length == 0  # noqa: E731
    return first, second


def fixed(length, tail):
    """A^(1) = {j: j // l = i // l}; A^(2) = {j: j mod l in {l - c, ..., l - 1}}; both causal."""
    first = lambda i, j: j <= i and j // length == i // length  # noqa: E731
    second = lambda i, j: j <= i and j % length in range(length - tail, length)  # noqa: E731
    return first, second


def either(first, second):
    return lambda i, j: first(i, j) or second(i, j)


def bigbird(block, window, hubs, drawn):
    """Blocks: w neighbours with the own one in the middle, g global ones, r random ones."""

    def see(i, j):
        a, b = i // block, j // block
        return abs(a - b) <= (window - 1) // 2 or a < hubs or b < hubs or b in drawn[a]

    return see


@pytest.mark.parametrize("window", [1, 2, 5, 30])
@pytest.mark.parametrize("is_causal", [False, True])
def test_sliding_window(window, is_causal):
    spec = preset("sliding_window", 8, 2, window=window, causal=is_causal)
    see = in_reach(window - 1)
    assert agree(spec, [causal(see) if is_causal else see] * 2)


@pytest.mark.parametrize("window", [1, 2, 5, 30])
def test_mistral(window):
    """Section 2: a position attends to at most W tokens, itself among them."""
    spec = preset("mistral", 8, 4, window=window, causal=True)
    assert agree(spec, [lambda i, j: 0 <= i - j < window] * 4)
    rows = sees_of(spec, 40, 40)[0]
    assert max(map(sum, rows)) == window


@pytest.mark.parametrize("every", [1, 2, 3, 6])
def test_mistral_layer_by_layer(every):
    """Of every n layers the last sees everything."""
    for layer in range(13):
        spec = preset("mistral", 8, 4, window=3, full_every=every, layer=layer, causal=True)
        whole = layer % every == every - 1
        assert agree(spec, [lambda i, j, w=whole: j <= i and (w or i - j < 3)] * 4, (9,))


@pytest.mark.parametrize(("window", "hubs"), [(1, 1), (2, 1), (4, 3), (30, 2), (3, 60)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_longformer(window, hubs, is_causal):
    spec = preset("longformer", 8, 2, window=window, global_tokens=hubs, causal=is_causal)
    see = longformer(window - 1, hubs)
    assert agree(spec, [causal(see) if is_causal else see] * 2)


def test_longformer_of_the_paper():
    """w = 512: 256 on each side; one class token."""
    spec = preset("longformer", 8, 2)
    assert agree(spec, [longformer(256, 1)] * 2, (600,))


@pytest.mark.parametrize(("window", "hubs"), [(1, 1), (2, 5), (4, 3), (3, 60)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_etc(window, hubs, is_causal):
    spec = preset("etc", 8, 2, window=window, global_tokens=hubs, causal=is_causal)
    see = etc(hubs, window - 1)
    assert agree(spec, [causal(see) if is_causal else see] * 2)


def test_etc_of_the_paper():
    """Radius 84 and 230 global tokens."""
    assert agree(preset("etc", 8, 2), [etc(230, 84)] * 2, (450,))


@pytest.mark.parametrize("is_causal", [False, True])
def test_star_transformer(is_causal):
    spec = preset("star_transformer", 8, 2, causal=is_causal)
    assert agree(spec, [causal(star) if is_causal else star] * 2)


@pytest.mark.parametrize("stride", [1, 2, 4, 7, 60])
def test_sparse_strided(stride):
    """Heads merged see the union of both sets; ours the same pairs, to the last one."""
    spec = preset("sparse_strided", 8, 2, stride=stride, causal=True)
    assert agree(spec, [either(*strided(stride))] * 2)


@pytest.mark.parametrize("stride", [1, 4, 7])
@pytest.mark.parametrize("heads", [2, 4, 5])
def test_sparse_strided_per_head(stride, heads):
    """The first half of the heads has A^(1), but for the key at distance l; the others A^(2)."""
    spec = preset("sparse_strided", 20, heads, stride=stride, causal=True, per_head=True)
    first, second = strided(stride)
    near = lambda i, j: first(i, j) and i - j != stride  # noqa: E731
    tables = [visible(near, 33, 33), visible(second, 33, 33)]
    got = sees_of(spec, 33, 33)
    assert got == sorted(got, key=tables.index)
    assert got.count(tables[0]) == (heads + 1) // 2
    assert got[0] == tables[0]


@pytest.mark.parametrize(("stride", "tail"), [(1, 1), (4, 1), (4, 2), (7, 7), (60, 3)])
def test_sparse_fixed(stride, tail):
    spec = preset("sparse_fixed", 8, 2, stride=stride, tail=tail, causal=True)
    assert agree(spec, [either(*fixed(stride, tail))] * 2)


@pytest.mark.parametrize(("stride", "tail"), [(4, 1), (4, 2), (7, 3)])
def test_sparse_fixed_per_head(stride, tail):
    spec = preset("sparse_fixed", 8, 4, stride=stride, tail=tail, causal=True, per_head=True)
    first, second = fixed(stride, tail)
    assert agree(spec, [first, first, second, second])


@pytest.mark.parametrize("name", ["sparse_strided", "sparse_fixed"])
@pytest.mark.parametrize("length", [1, 2, 16, 20, 49])
def test_sparse_strides_are_near_the_root_of_the_length(name, length):
    """Child et al., 4.2: l close to sqrt(n). What is seen then grows like n sqrt(n)."""
    spec = preset(name, 8, 2, length=length, causal=True)
    found = [
        stride
        for stride in range(1, 12)
        for tail in range(1, stride + 1)
        if agree(
            spec,
            [either(*(strided(stride) if name == "sparse_strided" else fixed(stride, tail)))] * 2,
            (40,),
        )
    ]
    assert found
    assert min(abs(stride - max(length**0.5, 2)) for stride in found) < 1


@pytest.mark.parametrize("name", ["sparse_strided", "sparse_fixed"])
def test_sparse_without_causality_sees_both_ways(name):
    """Our reading: the same sets without j <= i."""
    spec = preset(name, 8, 2, stride=4, **({"tail": 2} if name == "sparse_fixed" else {}))
    both = {
        "sparse_strided": lambda i, j: abs(i - j) < 4 or (i - j) % 4 == 0,
        "sparse_fixed": lambda i, j: i // 4 == j // 4 or j % 4 >= 2,
    }
    assert agree(spec, [both[name]] * 2)


def test_two_steps_of_sparse_attention_reach_every_pair():
    """Section 4.1: a path of at most p + 1 = 3 positions joins any earlier one to the output."""
    for name, extra in (("sparse_strided", {}), ("sparse_fixed", {"tail": 1})):
        spec = preset(name, 8, 2, stride=5, causal=True, **extra)
        mask = spec.pattern.mask(30, 30).double()
        assert ((mask @ mask).tril() > 0).tolist() == visible(lambda i, j: j <= i, 30, 30)


@pytest.mark.parametrize("block", [1, 2, 4])
@pytest.mark.parametrize("sizes", [(3, 3, 2), (1, 1, 1), (5, 2, 3)])
@pytest.mark.parametrize("seed", [0, 4])
def test_bigbird(block, sizes, seed):
    """The random blocks of a row are a draw of so many of all blocks."""
    window, random, hubs = sizes
    spec = preset(
        "bigbird",
        8,
        2,
        length=50,
        block=block,
        window_blocks=window,
        random_blocks=random,
        global_blocks=hubs,
        seed=seed,
    )
    count = -(-50 // block)
    rows = Random(random, length=count, seed=seed).mask(count, count)
    drawn = [set(row.nonzero().flatten().tolist()) for row in rows]
    assert {len(blocks) for blocks in drawn} == {min(random, count)}
    assert agree(spec, [bigbird(block, window, hubs, drawn)] * 2)


@pytest.mark.parametrize("length", [None, 50])
def test_causal_bigbird(length):
    """Random blocks of the past, and no pair that looks ahead."""
    spec = preset("bigbird", 8, 2, length=length, block=4, random_blocks=2, seed=1, causal=True)
    count = 13
    rows = Random(2, seed=1).mask(count, count)
    drawn = [set(row.nonzero().flatten().tolist()) for row in rows]
    assert agree(spec, [causal(bigbird(4, 3, 2, drawn))] * 2)


SMALL = {
    "sliding_window": {"window": 2},
    "mistral": {"window": 2},
    "longformer": {"window": 2, "global_tokens": 2},
    "etc": {"window": 2, "global_tokens": 2},
    "bigbird": {"length": 9, "block": 2, "random_blocks": 1, "global_blocks": 1},
    "star_transformer": {},
    "sparse_strided": {"stride": 3},
    "sparse_fixed": {"stride": 3, "tail": 1},
}


@pytest.mark.parametrize("name", [name for name in SMALL if name != "mistral"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("length", [1, 2, 5, 9])
def test_layers_attend_to_what_is_seen(name, is_causal, length):
    layer = built(preset(name, 8, 2, causal=is_causal, **SMALL[name]))
    tables = sees_of(layer.spec, 9, 9)
    sees = [lambda t, s, table=table: table[t][s] for table in tables]
    x = normal(2, length, 8, seed=length)
    assert_close(layer(x), outputs(layer, x, sees))


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize("full_every", [None, 2])
def test_mistral_turns_queries_and_keys_and_shares_heads(length, full_every):
    """Rotary positions, and a quarter of the heads for keys and values."""
    for number in (0, 1):
        spec = preset("mistral", 16, 8, window=3, full_every=full_every, layer=number, causal=True)
        assert spec.kv_heads == 2
        layer, x = built(spec), normal(2, length, 16, seed=length)
        whole = full_every == 2 and number == 1
        see = causal(lambda i, j, w=whole: w or i - j < 3)
        rows = [of_layer(layer, row, plain(10_000.0, 2), see=see) for row in x.tolist()]
        assert_close(layer(x), tensor(rows))


@pytest.mark.parametrize("name", SMALL)
def test_gradient(name):
    layer = built(preset(name, 8, 2, causal=True, **SMALL[name]))
    assert gradients_agree(layer, normal(1, 5, 8, seed=1))
