"""Words and the compositions they lead to."""

from __future__ import annotations

import pytest

from suffice import AttentionSpec, preset
from suffice.convert import Step, spec_after, steps_of
from suffice.encoders import Efficient, HeadRMS, Latent, Optimised, Standard
from suffice.errors import ConfigError
from suffice.mixing import Alignment
from suffice.patterns import Causal, Full, Global, Window
from suffice.positions import Rope

SPEC = AttentionSpec(d_model=16, num_heads=4, num_kv_heads=2, pattern=Causal())


def after(word, spec=SPEC, length=8):
    (step,) = steps_of(word)
    return spec_after(step, spec, length)


def test_targets_are_parsed():
    for word in ("keep", "gqa:2", "optimised", "efficient:4", "latent:12", "window:8+sinks:3"):
        assert [str(step) for step in steps_of(word)] == [word]
    assert steps_of("mqa, window:9+sinks") == (
        Step(name="gqa", number=1),
        Step(name="window", number=9, sinks=4),
    )


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("gqa2", "did you mean 'gqa'"),
        ("lineal", "did you mean 'linear'"),
        ("", "unknown target ''"),
        ("gqa:2,window:8+2", r"'2' in 'window:8\+2'"),
        ("gqa", "write gqa:N"),
        ("latent:0", "'latent:0'"),
        ("super:3", "'super:3'"),
        ("gqa:2+sinks", r"'gqa:2\+sinks'"),
    ],
)
def test_other_targets_are_refused(word, message):
    with pytest.raises(ConfigError, match=message):
        steps_of(word)


def test_compositions():
    assert after("keep") is SPEC
    assert after("gqa:4").kv_heads == 4
    assert after("standard", preset("efficient", 16, 4)).encoder == Standard()
    assert (after("optimised").encoder, after("optimised").kv_heads) == (Optimised(), 2)
    assert (after("efficient:4").encoder, after("efficient:4").kv_heads) == (Efficient(), 4)
    aligned = after("super")
    assert aligned.mixing == Alignment(8, bias=True, init="identity")
    latent = after("latent:6")
    assert (latent.encoder, latent.kv_heads, latent.head_dim) == (Latent(), 1, 6)
    assert latent.score_scale == SPEC.score_scale == 0.5
    whole = after("input")
    assert (whole.encoder, whole.kv_heads, whole.head_dim) == (Efficient(), 1, 16)


def test_windows():
    assert after("window:5").pattern == (Window(5) | Global(4)) & Causal()
    assert after("window:5+sinks:0").pattern == Window(5) & Causal()
    assert after("window:5+sinks:2").pattern == (Window(5) | Global(2)) & Causal()
    two_sided = after("window:5", preset("standard", 16, 4))
    assert two_sided.pattern == Window(5) & Full()


def test_a_latent_is_no_wider_than_keys_and_values():
    assert after("latent:16").head_dim == 16
    with pytest.raises(ConfigError, match="latent:999999999.* at most 16"):
        after("latent:999999999")


@pytest.mark.parametrize("word", ["latent:8", "input"])
def test_normalised_keys_cannot_share_a_latent(word):
    normalised = AttentionSpec(d_model=16, num_heads=4, norm=HeadRMS())
    with pytest.raises(ConfigError, match=f"{word}: HeadRMS"):
        after(word, normalised)


@pytest.mark.parametrize("word", ["latent:8", "input"])
def test_rotating_keys_cannot_share_a_latent(word):
    turning = AttentionSpec(d_model=16, num_heads=4, position=Rope())
    with pytest.raises(ConfigError, match=f"{word}: Rope"):
        after(word, turning)


def test_super_needs_a_length_and_values_as_they_are():
    with pytest.raises(ConfigError, match="super fixes the longest input, .* give length="):
        after("super", length=None)
    with pytest.raises(ConfigError, match="super: .*Alignment"):
        after("super", preset("super_attention", 16, 4, length=8))
