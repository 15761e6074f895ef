"""Names of compositions, what they are made of, and which are legal where."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suffice.choose import Composition, Request, base_of
from suffice.choose.candidates import Candidate, candidates
from suffice.errors import ConfigError
from suffice.kernels import Elu, Softmax
from suffice.memory import Dynamic, Quantised, Rolling
from suffice.patterns import Causal, Full, Global, Window
from suffice.positions import Rope

from .worlds import lm_base, translator_base

IMAGE = base_of(Request(task="image", model="digits_vit"))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("efficient+kv:2+window:16+sinks:4+memory:8+weights:4",) * 2,
        ("linear+softmax:2",) * 2,
        (" mqa + weights:8 + window:32 ", "mqa+window:32+weights:8"),
    ],
)
def test_names_are_read_and_written_in_order(text, name):
    assert Composition.parse(text).name == name


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("eficient", "unknown mechanism 'eficient'; did you mean 'efficient'"),
        ("efficient+wide:3", "'wide:3' in 'efficient.wide:3'"),
        ("efficient+windw:3", "'window'"),
        ("efficient+window", "'window' in .* window:N"),
        ("efficient+window:2+window:3", "'window:3'"),
        ("standard+memory:2", "memory:2 .* 8 or 4 bits"),
        ("standard+values:4", "memory:8"),
        ("standard+memory:8+values:3", "values:3"),
        ("standard+weights:3", "weights:3 .* 16 or 8 or 4 bits"),
        ("standard+kv:0", "kv:0"),
        ("standard+sinks:4", "sinks .* window:64"),
        ("standard+full:2", "full .* window"),
    ],
)
def test_other_names_are_refused(name, named):
    with pytest.raises(ConfigError, match=named):
        Composition.parse(name)


@pytest.mark.parametrize(
    ("name", "patterns", "memory"),
    [
        ("efficient+window:16", [Window(16) & Causal()] * 2, Rolling(16)),
        (
            "efficient+window:16+memory:8",
            [Window(16) & Causal()] * 2,
            Quantised(Rolling(16), bits=8),
        ),
        ("standard+memory:8+values:4", [Causal()] * 2, Quantised(bits=8, value_bits=4)),
        ("standard+window:16+sinks:4", [Causal()] * 2, Rolling(16, sinks=4)),
        ("standard+window:16+full:2", [Window(16) & Causal(), Causal()], Dynamic()),
    ],
)
def test_changes_set_patterns_and_the_cache_that_is_written_to(name, patterns, memory):
    base, one = lm_base(), Composition.parse(name)
    assert [spec.pattern for spec in base.specs(one)] == patterns
    assert base.memory_for(one) == memory


def test_heads_are_shared_in_every_mechanism():
    base = lm_base()
    for name in ("standard+kv:2", "efficient+kv:2", "gqa+kv:2", "linear+kv:2"):
        assert {spec.kv_heads for spec in base.specs(Composition.parse(name))} == {2}, name


def test_hybrids_take_turns():
    base = lm_base(depth=4)
    specs = base.specs(Composition.parse("linear+softmax:2+kv:1"))
    assert [type(spec.kernel) for spec in specs] == [Elu, Softmax, Elu, Softmax]
    assert {spec.kv_heads for spec in specs} == {1}
    assert base.memory_for(Composition.parse("linear+softmax:2")) == Dynamic()
    image = replace(IMAGE, config=replace(IMAGE.config, depth=4))
    both = image.specs(Composition.parse("linear+softmax:2"))
    assert [type(spec.kernel) for spec in both] == [Elu, Softmax, Elu, Softmax]


def test_positions_of_the_model_are_kept():
    base = replace(lm_base(), position=Rope())
    for name in ("standard", "linear+softmax:2", "efficient+window:16"):
        assert {spec.position for spec in base.specs(Composition.parse(name))} == {Rope()}, name


def test_readers_are_bidirectional():
    one = Composition.parse("standard+window:4+sinks:2")
    assert IMAGE.specs(one)[0].pattern == Window(4) | Global(2)
    assert IMAGE.memory_for(one) == Dynamic()
    alternating = IMAGE.specs(Composition.parse("standard+window:4+full:2"))
    assert [spec.pattern for spec in alternating] == [Window(4), Full()]
    sliding = IMAGE.specs(Composition.parse("sliding_window+window:3"))[0].pattern
    assert sliding == Window(3) & Window(2)


def test_a_translator_has_three_kinds_of_layers():
    base = translator_base()
    specs = base.specs(Composition.parse("efficient+kv:2+window:8"))
    assert [spec.pattern for spec in specs] == [
        Window(8),
        Window(8) & Causal(),
        Window(8) & Causal(),
        Full(),
        Full(),
    ]
    assert {spec.kv_heads for spec in specs} == {2}
    assert base.memory_for(Composition.parse("efficient+window:8")) == Rolling(8)
    sinks = base.specs(Composition.parse("efficient+window:8+sinks:2"))
    assert [spec.pattern for spec in sinks][:2] == [Window(8) | Global(2), Causal()]


@pytest.mark.parametrize(
    ("name", "base", "named"),
    [
        ("standard+memory:8", IMAGE, "memory:8: image"),
        ("standard+window:4+full:3", IMAGE, "full:3"),
        ("linear+softmax:9", lm_base(), "softmax:9"),
        ("linear+softmax:2", translator_base(), "softmax:2"),
        ("linear+memory:8", lm_base(), "memory:8: linear"),
        ("efficient+memory:8+values:4", lm_base(), "values:4: efficient"),
        ("linformer", lm_base(), "LowRank sums keys of all positions"),
        ("standard+kv:3", lm_base(), "num_kv_heads=3 does not divide num_heads=4"),
        ("sliding_window", translator_base(), "block 0 has cross-attention"),
        ("super_attention+window:8+sinks:2", lm_base(), "would forget what it needs"),
        ("standard+window:8+sinks:2+full:2", lm_base(), "sinks:2 with full:2"),
    ],
)
def test_illegal_compositions_are_refused_with_the_reason(name, base, named):
    with pytest.raises(ConfigError, match=named):
        Candidate.of(Composition.parse(name), base)


def test_candidates_start_with_standard_and_compute_different_things():
    legal, illegal = candidates(lm_base(256, heads=8, depth=6))
    assert legal[0].name == "standard"
    assert len({one.identity for one in legal}) == len(legal)
    names = {one.name for one in legal}
    assert names > {
        "mqa", "gqa", "linear", "efficient+kv:1+window:64+memory:8+weights:8", "standard+window:64",
        "standard+window:64+sinks:4", "standard+window:64+full:6", "linear+softmax:4",
        "linear+kv:1+softmax:4",
    }  # fmt: skip
    assert "standard+kv:1" not in names  # it is mqa
    shared = {name for name in names if name.startswith("efficient+kv") and name.count("+") == 1}
    assert shared == {"efficient+kv:4", "efficient+kv:2", "efficient+kv:1"}
    assert "LowRank" in illegal["linformer"]


def test_readers_have_no_packed_candidates():
    legal, illegal = candidates(IMAGE)
    assert not any(one.composition.weights or one.composition.memory for one in legal)
    assert "linformer" in {one.name for one in legal}
    assert illegal == {}


def test_chosen_names_are_kept_even_if_equal():
    legal, illegal = candidates(lm_base(), ("mqa", "standard+kv:1", "linformer"))
    assert [one.name for one in legal] == ["standard", "mqa", "standard+kv:1"]
    assert legal[1].identity == legal[2].identity
    assert list(illegal) == ["linformer"]


def test_packed_weights_are_for_cpus():
    legal, illegal = candidates(lm_base(), ("standard+weights:8",), packs=False)
    assert [one.name for one in legal] == ["standard"]
    assert illegal == {"standard+weights:8": "weights:8: packed weights are for CPUs."}
    assert not any(one.composition.weights for one in candidates(lm_base(), packs=False)[0])


def test_a_composition_builds_a_model():
    model = lm_base().build(Composition.parse("efficient+window:16"))
    assert model(torch.zeros(1, 5, dtype=torch.int64)).shape == (1, 5, 11)
