"""The sparse mechanisms: what sizes they take. `tests/definitions` holds who sees whom."""

from __future__ import annotations

from math import isqrt

import pytest

from suffice import preset
from suffice.errors import ConfigError
from suffice.patterns import Block, Fixed, Global, Random, Strided, Window
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
    bigbird = Block(64, Window(2) | Random(3, length=None if causal else 64) | Global(2))
    assert near("bigbird", length=4096) == bigbird


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


def test_mistral_shares_heads_and_turns():
    spec = preset("mistral", 64, 32, window=8, causal=True)
    assert (spec.kv_heads, spec.position) == (8, Rope())
    assert [preset("mistral", 24, h).kv_heads for h in (1, 2, 3, 4, 6, 12)] == [1, 1, 3, 1, 3, 3]
    assert preset("mistral", 64, 4, num_kv_heads=2).kv_heads == 2
    others = [name for name in SPARSE if name != "mistral"]
    for name in others:
        spec = preset(name, 32, 4, **({"length": 9} if takes_length(name) else {}))
        assert (spec.kv_heads, spec.position) == (4, NoPosition())


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
        ("sparse_fixed", {"num_heads": 1, "per_head": True}, "num_heads=1"),
        ("star_transformer", {"length": 9}, "unknown option of star_transformer 'length'"),
    ],
)
def test_refusals(name, options, message):
    with pytest.raises(ConfigError, match=message):
        preset(name, 32, **{"num_heads": 4} | options)
