"""The configs of all models: what they refuse, and their JSON."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest

from suffice import AttentionSpec, preset
from suffice.errors import ConfigError
from suffice.models import ClassifierConfig, LMConfig, TranslatorConfig, ViTConfig
from suffice.patterns import Causal
from suffice.positions import Rope

SIZES = {"d_model": 8, "mlp_width": 8}
LM = LMConfig(vocabulary_size=9, length=12, depth=2, tied=False, **SIZES)
CLASSIFIER = ClassifierConfig(
    vocabulary_size=9, length=12, num_classes=3, depth=2, head_widths=(6, 4), **SIZES
)
VIT = ViTConfig(image_size=6, patch_size=2, num_classes=3, depth=2, **SIZES)
TRANSLATOR = TranslatorConfig(
    source_vocabulary_size=9, target_vocabulary_size=7, length=12, **SIZES
)
CONFIGS = [LM, CLASSIFIER, VIT, TRANSLATOR]
configs = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
CAUSAL = AttentionSpec(d_model=8, num_heads=2, pattern=Causal())
FULL = preset("standard", 8, 2)


@configs
def test_json_there_and_back(config):
    data = json.loads(json.dumps(config.to_json()))
    assert type(config).from_json(data) == config


def test_defaults_may_be_left_out():
    short = {key: v for key, v in LM.to_json().items() if key not in ("tied", "eps", "start")}
    assert LMConfig.from_json(short | {"tied": False}) == LM


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ([1], "LMConfig"),
        (LM.to_json() | {"n_layer": 2}, "n_layer"),
        ({"depth": 2, "d_model": 8, "length": 8}, "mlp_width"),
        (LM.to_json() | {"depth": 0}, "depth=0"),
    ],
)
def test_other_data_are_refused(data, match):
    with pytest.raises(ConfigError, match=match):
        LMConfig.from_json(data)


@configs
@pytest.mark.parametrize("size", [0, -1, 2.0, True, None, "8"])
def test_sizes_are_integers_of_at_least_1(config, size):
    for field in fields(config):
        if type(getattr(config, field.name)) is int:
            with pytest.raises(ConfigError, match=rf"{field.name}='?{size}'? ?"):
                replace(config, **{field.name: size})


def test_numpy_integers_are_sizes():
    config = replace(LM, depth=np.int64(3))
    assert type(config.depth) is int


def test_every_wrong_size_is_named():
    with pytest.raises(ConfigError, match=r"depth=0, head_widths=\(3, 0\)"):
        replace(CLASSIFIER, depth=0, head_widths=(3, 0))


@configs
@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_dropout_is_a_probability_below_1(config, rate):
    for name in {"dropout", "head_dropout"} & {field.name for field in fields(config)}:
        with pytest.raises(ConfigError, match=f"{name}="):
            replace(config, **{name: rate})


@pytest.mark.parametrize("value", [0.0, -1.0, "small", 10**400])
def test_eps_and_start_are_positive(value):
    for config, name in ((LM, "eps"), (LM, "start"), (VIT, "eps")):
        with pytest.raises(ConfigError, match=f"{name}="):
            replace(config, **{name: value})


def test_switches_are_booleans():
    with pytest.raises(ConfigError, match="tied=1"):
        replace(LM, tied=1)


@pytest.mark.parametrize(
    ("config", "name", "word", "nearest"),
    [
        (LM, "activation", "swigul", "swiglu"),
        (LM, "norm", "layr", "layer"),
        (LM, "positions", "learnt", "learned"),
        (CLASSIFIER, "norm", "pots", "post"),
        (CLASSIFIER, "activation", "rulu", "relu"),
        (CLASSIFIER, "head_activation", "tan", "tanh"),
        (CLASSIFIER, "pooling", "firs", "first"),
        (CLASSIFIER, "positions", "sinus", "sinusoidal"),
        (VIT, "pooling", "men", "mean"),
        (VIT, "norm", "prae", "pre"),
        (TRANSLATOR, "activation", "rulu", "relu"),
        (TRANSLATOR, "norm", "pots", "post"),
    ],
)
def test_unknown_words_are_refused_with_the_nearest(config, name, word, nearest):
    with pytest.raises(ConfigError, match=f"{name} '{word}'; did you mean '{nearest}'"):
        replace(config, **{name: word})


def test_a_patch_that_does_not_divide_the_image_is_refused():
    with pytest.raises(ConfigError, match="patch_size=4"):
        replace(VIT, patch_size=4)


def test_a_config_is_frozen():
    with pytest.raises(FrozenInstanceError):
        LM.depth = 3


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        (FULL, r"block 0 has pattern=Full\(\)"),
        ([CAUSAL, preset("sliding_window", 8, 2, window=3)], "block 1 has pattern=Window"),
        (preset("linformer", 8, 2, length=12), "block 0 has mixing=LowRank"),
        ([CAUSAL], "1 specs for 2 blocks"),
        ("standard", "spec='standard'"),
        ([CAUSAL, "mqa"], "neither an AttentionSpec"),
        (None, "spec=None"),
        (replace(CAUSAL, d_model=6), "block 0 has a spec of d_model=6"),
        (preset("super_attention", 8, 2, length=5, causal=True), "block 0 .* 5 tokens .* of 12"),
        (replace(CAUSAL, d_source=6), "block 0"),
    ],
)
def test_specs_that_do_not_fit_a_language_model(spec, match):
    with pytest.raises(ConfigError, match=match):
        LM.build(spec)


def test_specs_that_do_not_fit_a_vit():
    with pytest.raises(ConfigError, match="block 0 .* 6 tokens .* of 9"):
        VIT.build(preset("bigbird", 8, 2, length=6))


def test_specs_that_do_not_fit_a_translator():
    with pytest.raises(ConfigError, match=r"block 0 has pattern=Full\(\)"):
        TRANSLATOR.build(FULL, FULL, FULL)
    with pytest.raises(ConfigError, match="block 1 has cross-attention with pattern=Causal"):
        TRANSLATOR.build(FULL, CAUSAL, [FULL, CAUSAL])
    with pytest.raises(ConfigError, match="block 0 has cross-attention .* position=Rope"):
        TRANSLATOR.build(FULL, CAUSAL, replace(FULL, position=Rope()))
    with pytest.raises(ConfigError, match="2 specs for 1 blocks"):
        TRANSLATOR.build([FULL] * 2, CAUSAL, FULL)
    with pytest.raises(ConfigError, match="5 tokens"):
        TRANSLATOR.build(FULL, CAUSAL, preset("super_attention", 8, 2, length=5))
