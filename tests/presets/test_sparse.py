"""The sparse mechanisms: who sees whom, how many pairs that makes, what sizes they take."""

from __future__ import annotations

from math import isqrt

import pytest
import torch

from suffice import preset
from suffice.errors import ConfigError
from suffice.patterns import Block, Causal, Fixed, Full, Global, PerHead, Random, Strided, Window
from suffice.positions import NoPosition, Rope
from suffice.presets import PRESETS, schedule, takes_length

SPARSE = (
    "sliding_window",
    "mistral",
    "longformer",
    "etc",
    "bigbird",
    "star_transformer",
    "sparse_strided",
    "sparse_fixed",
)


def mask(name, size, **options):
    spec = preset(name, 32, 4, **options)
    assert spec.max_length is None or spec.max_length >= size
    return spec.pattern.mask(size, size)


def table(see, length):
    return torch.tensor([[see(t, s) for s in range(length)] for t in range(length)])


SEES = {
    "sliding_window": ({"window": 5}, lambda t, s: abs(t - s) < 5),
    "mistral": ({"window": 5}, lambda t, s: abs(t - s) < 5),
    "longformer": (
        {"window": 4, "global_tokens": 3},
        lambda t, s: abs(t - s) < 4 or min(t, s) < 3,
    ),
    "etc": (
        {"window": 3, "global_tokens": 7},
        lambda t, s: abs(t - s) < 3 or min(t, s) < 7,
    ),
    "star_transformer": ({}, lambda t, s: abs(t - s) <= 1 or t * s == 0),
    "sparse_strided": ({"stride": 6}, lambda t, s: abs(t - s) < 6 or (t - s) % 6 == 0),
    "sparse_fixed": (
        {"stride": 8, "tail": 3},
        lambda t, s: t // 8 == s // 8 or s % 8 in (5, 6, 7),
    ),
}


@pytest.mark.parametrize("name", SEES)
@pytest.mark.parametrize("length", [1, 7, 8, 40, 67])
def test_who_sees_whom(name, length):
    options, see = SEES[name]
    both = mask(name, length, **options)
    assert torch.equal(both, table(see, length))
    assert torch.equal(mask(name, length, causal=True, **options), both.tril())


@pytest.mark.parametrize("n", [70, 200])
def test_visible_pairs_by_formula(n):
    """Counted on paper, with and without look-ahead."""
    w, g = 9, 4

    def pairs(name, causal, **options):
        return preset(name, 32, 4, causal=causal, **options).pattern.pairs(n, n)

    band = n * w - w * (w - 1) // 2
    assert pairs("sliding_window", True, window=w) == band
    assert pairs("sliding_window", False, window=w) == 2 * band - n
    # columns of the hubs below the window, and what the hubs see: their rows are in the band
    beyond = sum(max(0, n - w - k) for k in range(g))
    for name in ("longformer", "etc"):
        assert pairs(name, True, window=w, global_tokens=g) == band + beyond
        assert pairs(name, False, window=w, global_tokens=g) == 2 * (band + beyond) - n
    assert pairs("star_transformer", True) == 2 * n - 1 + n - 2
    assert pairs("star_transformer", False) == 3 * n - 2 + 2 * (n - 2)
    steps = sum((t - w + 1 + w - 1) // w for t in range(n))  # multiples of w up to t, without 0
    assert pairs("sparse_strided", True, stride=w) == band + steps
    assert pairs("sparse_strided", False, stride=w) == 2 * (band + steps) - n
    own = sum(t % w + 1 for t in range(n))
    tails = sum(2 * (t // w) for t in range(n))
    assert pairs("sparse_fixed", True, stride=w, tail=2) == own + tails


@pytest.mark.parametrize("length", [64, 70, 96])
@pytest.mark.parametrize("causal", [False, True])
def test_bigbird_is_made_of_blocks(length, causal):
    """Each block sees the window, the first blocks and random ones; nothing is seen in part."""
    seen = mask("bigbird", length, length=length, block=8, seed=3, causal=causal)
    count = -(-length // 8)
    blocks = seen[::8, ::8]
    whole = blocks.repeat_interleave(8, 0).repeat_interleave(8, 1)[:length, :length]
    assert torch.equal(seen, whole.tril() if causal else whole)
    for a in range(count):
        for b in range(count):
            if (abs(a - b) <= 1 or min(a, b) < 2) and (b <= a or not causal):
                assert blocks[a, b]
    random = Random(3, length=None if causal else count, seed=3).mask(count, count)
    for a in range(2, count):
        others = [b for b in range(2, count) if abs(a - b) > 1 and blocks[a, b]]
        assert others == [b for b in range(2, count) if abs(a - b) > 1 and random[a, b]]
        assert len(others) <= 3


def test_bigbird_draws_what_its_seed_says():
    seeds = [preset("bigbird", 32, 4, length=1024, seed=seed).pattern for seed in (0, 0, 1)]
    assert seeds[0] == seeds[1] != seeds[2]
    assert not torch.equal(seeds[0].mask(1024, 1024), seeds[2].mask(1024, 1024))


def test_bigbird_of_the_paper():
    """At 4096 tokens: 64 blocks of 64; 3 of a window, 3 random, 2 global."""
    pattern = preset("bigbird", 32, 4, length=4096).pattern
    assert pattern == Block(64, Window(2) | Random(3, length=64) | Global(2))
    over = pattern.over.mask(64, 64)
    assert over[:2].all()
    assert over[:, :2].all()
    assert int(over[2:].sum(dim=1).min()) >= 5
    assert int(over[2:].sum(dim=1).max()) <= 8


@pytest.mark.parametrize(
    ("length", "block"), [(1, 1), (16, 1), (32, 2), (100, 6), (1024, 64), (10**6, 64)]
)
def test_blocks_of_bigbird_follow_the_length(length, block):
    spec = preset("bigbird", 32, 4, length=length)
    assert spec.pattern.size == block
    assert length <= spec.max_length < length + block


def test_a_causal_bigbird_serves_any_length():
    spec = preset("bigbird", 32, 4, causal=True)
    assert spec.max_length is None
    assert spec.pattern.parts[0].size == 64
    assert preset("bigbird", 32, 4, causal=True, block=4).pattern.parts[0].size == 4
    assert preset("bigbird", 32, 4, causal=True, length=64).max_length is None


@pytest.mark.parametrize("causal", [False, True])
def test_sizes_of_the_papers(causal):
    """Where no length is given."""

    def near(name, **options):
        pattern = preset(name, 32, 4, causal=causal, **options).pattern
        return pattern.parts[0] if causal else pattern

    assert near("sliding_window") == Window(256)
    assert near("mistral") == Window(4096)
    assert near("longformer") == Window(257) | Global(1)
    assert near("etc") == Window(85) | Global(230)
    assert near("star_transformer") == Window(2) | Global(1)
    assert near("sparse_strided") == Window(128) | Strided(128)
    assert near("sparse_fixed") == Block(128) | Fixed(128, 32)


@pytest.mark.parametrize("length", [1, 9, 16, 32, 200])
def test_sizes_of_a_length(length):
    def pattern(name, **options):
        return preset(name, 32, 4, length=length, **options).pattern

    window, stride = Window(max(2, length // 8)), max(2, isqrt(length))
    assert pattern("sliding_window") == pattern("mistral") == window
    assert pattern("longformer") == window | Global(1)
    assert pattern("etc") == window | Global(max(1, length // 16))
    assert pattern("sparse_strided") == Window(stride) | Strided(stride)
    assert pattern("sparse_fixed") == Block(stride) | Fixed(stride, max(1, stride // 4))
    assert pattern("sliding_window", window=7) == Window(7)
    assert pattern("etc", global_tokens=3) == window | Global(3)
    assert pattern("sparse_fixed", stride=12) == Block(12) | Fixed(12, 3)


@pytest.mark.parametrize(
    ("name", "near", "far"),
    [
        ("sparse_strided", Window(4), Strided(4)),
        ("sparse_fixed", Block(4), Fixed(4, 1)),
    ],
)
def test_half_of_the_heads_each(name, near, far):
    for heads, first in [(2, 1), (3, 2), (4, 2), (5, 3)]:
        spec = preset(name, 60, heads, stride=4, per_head=True)
        assert spec.pattern == PerHead((near,) * first + (far,) * (heads - first))
        spec = preset(name, 60, heads, stride=4, per_head=True, causal=True)
        assert spec.pattern.of_heads(heads)[0] == near & Causal()
        assert spec.pattern.of_heads(heads)[-1] == far & Causal()
    with pytest.raises(ConfigError, match="num_heads=1"):
        preset(name, 32, 1, per_head=True)


def test_mistral_shares_heads_and_turns():
    spec = preset("mistral", 64, 32, window=8, causal=True)
    assert (spec.kv_heads, spec.position) == (8, Rope())
    assert [preset("mistral", 24, h).kv_heads for h in (1, 2, 3, 4, 6, 12)] == [1, 1, 3, 1, 3, 3]
    assert preset("mistral", 64, 4, num_kv_heads=2).kv_heads == 2
    others = [name for name in SPARSE if name != "mistral"]
    for name in others:
        spec = preset(name, 32, 4, **({"length": 9} if takes_length(name) else {}))
        assert (spec.kv_heads, spec.position) == (4, NoPosition())


@pytest.mark.parametrize("causal", [False, True])
def test_layers_of_mistral(causal):
    near = Window(8) & Causal() if causal else Window(8)
    full = Causal() if causal else Full()

    def patterns(depth, **options):
        specs = schedule("mistral", 32, 4, depth=depth, window=8, causal=causal, **options)
        assert len({(s.num_kv_heads, s.position, s.bias) for s in specs}) == 1
        return [spec.pattern for spec in specs]

    assert patterns(3) == [near] * 3
    assert patterns(5, full_every=2) == [near, full, near, full, near]
    assert patterns(7, full_every=6) == [near] * 5 + [full, near]
    assert patterns(2, full_every=1) == [full, full]


def test_a_schedule_repeats_what_is_the_same_in_each_layer():
    one = preset("super_attention", 32, 4, length=9)
    assert schedule("super_attention", 32, 4, depth=3, length=9) == [one] * 3
    assert [n for n in PRESETS if schedule(n, 32, 4, depth=2, **_length(n))[0].d_model != 32] == []


def _length(name):
    return {"length": 16} if takes_length(name) else {}


def test_refusals_of_a_schedule():
    with pytest.raises(ConfigError, match="'mistal'"):
        schedule("mistal", 32, 4, depth=2)
    with pytest.raises(ConfigError, match="depth=0"):
        schedule("standard", 32, 4, depth=0)
    with pytest.raises(ConfigError, match="layer=1"):
        schedule("mistral", 32, 4, depth=2, layer=1)
    with pytest.raises(ConfigError, match="'windw'"):
        schedule("mistral", 32, 4, depth=2, windw=8)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mistral", {"layer": -1}, "layer=-1: layers have whole numbers from 0"),
        ("mistral", {"layer": 1.0}, "layer=1.0: layers have whole numbers"),
        ("mistral", {"full_every": 0}, "full_every=0: give a whole number of at least 1"),
        ("bigbird", {}, "bigbird draws random blocks of the whole input; give length=, in tokens"),
        ("bigbird", {"length": 64, "window_blocks": 2}, "window_blocks=2"),
        ("bigbird", {"length": 64, "window_blocks": 0}, "window_blocks=0: give a whole number"),
        ("bigbird", {"length": 64, "block": 0}, "block=0: give a whole number of at least 1"),
        ("bigbird", {"length": 0}, "length=0: give a whole number of at least 1"),
        ("bigbird", {"length": 64, "random_blocks": 0}, r"Random\(keys=0\) draws nothing"),
        ("sliding_window", {"length": 0}, "length=0: give a whole number of at least 1"),
        ("sliding_window", {"window": 0}, r"Window\(size=0\) holds no key"),
        ("sliding_window", {"window": "8"}, "size='8' is not a whole number"),
        ("longformer", {"length": True}, "length=True: give a whole number"),
        ("etc", {"length": "64"}, "length='64': give a whole number"),
        ("etc", {"global_tokens": 0}, r"Global\(tokens=0\) has no hub"),
        ("sparse_strided", {"length": 2.5}, "length=2.5: give a whole number"),
        ("sparse_strided", {"stride": 0}, "stride=0"),
        ("sparse_fixed", {"stride": 0}, "stride=0: give a whole number of at least 1"),
        ("sparse_fixed", {"stride": 4, "tail": 5}, "tail=5.: a stretch"),
        ("star_transformer", {"length": 9}, "unknown option of star_transformer 'length'"),
    ],
)
def test_refusals(name, options, message):
    with pytest.raises(ConfigError, match=message):
        preset(name, 32, 4, **options)
