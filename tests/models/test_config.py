"""The configs of all models, and the named language models."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from suffice import AttentionSpec, preset
from suffice.encoders import Efficient
from suffice.errors import ConfigError
from suffice.models import (
    CONFIGURATIONS,
    ClassifierConfig,
    LMConfig,
    TranslatorConfig,
    ViTConfig,
    configuration,
)
from suffice.models.architectures.hugging_face import architecture_of
from suffice.models.configurations import layers, published
from suffice.patterns import Causal, Window
from suffice.positions import NoPosition, Rope

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
        optional = size is None and str(field.type).endswith("| None")
        if type(getattr(config, field.name)) is int and not optional:
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
        (LM, "positions", "learnt", "learned"),
        (CLASSIFIER, "norm", "pots", "post"),
        (CLASSIFIER, "pooling", "firs", "first"),
        (VIT, "pooling", "men", "mean"),
        (TRANSLATOR, "activation", "rulu", "relu"),
    ],
)
def test_unknown_words_are_refused_with_the_nearest(config, name, word, nearest):
    with pytest.raises(ConfigError, match=f"{name} '{word}'; did you mean '{nearest}'"):
        replace(config, **{name: word})


def test_a_patch_that_does_not_divide_the_image_is_refused():
    with pytest.raises(ConfigError, match="patch_size=4"):
        replace(VIT, patch_size=4)


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
    with pytest.raises(ConfigError, match="block 1 .* pattern=Causal"):
        TRANSLATOR.build(FULL, CAUSAL, [FULL, CAUSAL])
    with pytest.raises(ConfigError, match="block 0 .* position=Rope"):
        TRANSLATOR.build(FULL, CAUSAL, replace(FULL, position=Rope()))
    with pytest.raises(ConfigError, match="2 specs for 1 blocks"):
        TRANSLATOR.build([FULL] * 2, CAUSAL, FULL)
    with pytest.raises(ConfigError, match="5 tokens"):
        TRANSLATOR.build(FULL, CAUSAL, preset("super_attention", 8, 2, length=5))


TINY = LMConfig(vocabulary_size=9, length=32, d_model=8, depth=6, mlp_width=8, bias=False)


class Allocated(TorchDispatchMode):
    """Counts the bytes of every tensor made anywhere but on the meta device."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        real = (t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and not t.is_meta)
        self.bytes += sum(t.nbytes for t in real)
        return out


def numbers(configured, but=""):
    """The parameters of a model, those of one part left out."""
    config, specs = configured
    named = config.build(specs, device="meta").named_parameters()
    return sum(p.numel() for name, p in named if not (but and name.startswith(but)))


COUNTED = {row["name"]: row["parameters"] for row in published() if "name" in row} | {
    "nanogpt_char": 10_745_088,
    "nanogpt_char_cpu": 804_096,
    "gpt2_124m": 124_373_760,
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_parameters_are_those_of_the_published_weights(name):
    assert numbers(configuration(name)) == COUNTED[name]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_nothing_is_allocated_on_meta(name):
    config, specs = configuration(name)
    with Allocated() as allocated:
        model = config.build(specs, device="meta", dtype=torch.bfloat16)
    assert allocated.bytes == 0
    tensors = [*model.parameters(), *model.buffers()]
    assert all(t.is_meta and t.dtype is torch.bfloat16 for t in tensors)


def test_the_counter_of_bytes_counts():
    with Allocated() as allocated:
        replace(TINY, depth=1).build(preset("standard", 8, 2, causal=True))
    assert allocated.bytes >= 4 * (9 + 32) * 8


OWN = ("nanogpt_char", "nanogpt_char_cpu", "gpt2_124m", "llama_15m", "llama_110m", "tinyllama_1b")


@pytest.mark.parametrize("name", [*OWN, "efficient_1b"])
def test_what_a_configuration_says_of_itself(name):
    config, specs = configuration(name)
    assert len(specs) == config.depth
    assert len(set(specs)) == 1
    spec = specs[0]
    llama = not name.startswith(("nanogpt", "gpt2"))
    assert spec.pattern == Causal()
    assert spec.bias is config.bias is False
    assert spec.dropout == config.dropout == (0.2 if name == "nanogpt_char" else 0.0)
    assert spec.position == (Rope() if llama else NoPosition())
    want = ("swiglu", "rms", "none") if llama else ("gelu", "layer", "learned")
    assert (config.activation, config.norm, config.positions) == want
    assert config.tied is (name not in ("tinyllama_1b", "efficient_1b"))
    assert config.eps == (1e-6 if name == "efficient_1b" else 1e-5)
    assert llama or config.mlp_width == 4 * config.d_model


def test_sizes():
    def sizes(configured):
        c, (spec, *_) = configured
        heads = (spec.num_heads, spec.kv_heads)
        return c.depth, c.d_model, c.mlp_width, c.length, c.vocabulary_size, heads

    assert sizes(configuration("nanogpt_char")) == (6, 384, 1536, 256, 65, (6, 6))
    assert sizes(configuration("nanogpt_char_cpu")) == (4, 128, 512, 64, 65, (4, 4))
    assert sizes(configuration("gpt2_124m")) == (12, 768, 3072, 1024, 50_304, (12, 12))
    assert sizes(configuration("llama_15m")) == (6, 288, 768, 256, 32_000, (6, 6))
    assert sizes(configuration("llama_110m")) == (12, 768, 2048, 1024, 32_000, (12, 12))
    assert sizes(configuration("tinyllama_1b")) == (22, 2048, 5632, 2048, 32_000, (32, 4))
    assert sizes(configuration("efficient_1b")) == (10, 3072, 8192, 2048, 32_000, (1, 1))
    assert configuration("efficient_1b")[1][0].encoder == Efficient()


@pytest.mark.parametrize(
    ("name", "theirs", "sizes"),
    [
        ("gemma2_2b", "Gemma2", {}),
        ("smollm3_3b", "SmolLM3", {"max_position_embeddings": 65_536, "rope_theta": 5e6}),
        (
            "olmo2_1b",
            "Olmo2",
            {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
            | {"num_attention_heads": 16, "num_key_value_heads": 16, "rope_theta": 5e5}
            | {"vocab_size": 100_352, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6},
        ),
        (
            "gemma3_1b",
            "Gemma3Text",
            {"hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 4}
            | {"num_key_value_heads": 1, "vocab_size": 262_144, "sliding_window": 512}
            | {"max_position_embeddings": 32_768},
        ),
    ],
)
def test_a_released_model_is_what_its_class_is_read_as(name, theirs, sizes):
    transformers = pytest.importorskip("transformers")
    facts = getattr(transformers, f"{theirs}Config")().to_dict()
    theta = sizes.pop("rope_theta", None)
    if theta is not None:
        facts["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    architecture, reader = architecture_of(facts | sizes, name)
    read = architecture.build(reader)
    config, specs = configuration(name)
    assert read.config == config
    assert [replace(spec, num_kv_heads=spec.kv_heads) for spec in specs] == list(read.specs)


def test_a_model_with_windows_of_its_own_takes_no_others():
    with pytest.raises(ConfigError, match=r"full_every, window.*gemma3_1b"):
        configuration("gemma3_1b", window=8, full_every=2)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_other_sizes_and_mechanisms(name):
    sizes = {"vocabulary_size": 11, "length": 16, "num_heads": 2, "dropout": 0.1}
    config, specs = configuration(name, "super_attention", **sizes)
    assert (config.vocabulary_size, config.length, config.dropout) == (11, 16, 0.1)
    spec = preset("super_attention", config.d_model, 2, length=16, causal=True, bias=False)
    own = {field: getattr(specs[0], field) for field in ("position", "pattern", "kernel")}
    assert specs[0] == replace(spec, **own, dropout=0.1)
    assert own == {field: getattr(configuration(name)[1][0], field) for field in own}


def test_gpts_with_biases():
    config, specs = configuration("gpt2_124m", vocabulary_size=50_257, bias=True)
    assert config.bias
    assert specs[0].bias
    assert numbers((config, specs)) == 124_439_808  # OpenAI's


def test_key_value_heads_of_tinyllama():
    assert configuration("tinyllama_1b", "mistral", window=64)[1][0].num_kv_heads == 4
    assert configuration("tinyllama_1b", num_kv_heads=8)[1][0].num_kv_heads == 8
    assert configuration("tinyllama_1b", "efficient")[1][0].num_kv_heads is None


# schedules


def patterns(*args, **options):
    return [spec.pattern for spec in layers(*args, **options)]


def test_windows_between_full_layers():
    near, full = Window(4) & Causal(), Causal()
    five_to_one = [near] * 5 + [full]
    for mechanism in ("standard", "efficient", "gqa", "sliding_window", "mistral"):
        assert patterns(mechanism, TINY, 2, window=4, full_every=6) == five_to_one
        assert patterns(mechanism, TINY, 2, window=4) == [near] * 6
    assert patterns("sliding_window", TINY, 2, full_every=2) == [near, full] * 3
    assert patterns("standard", TINY, 2) == [full] * 6
    assert patterns("efficient", TINY, 2, window=4, full_every=1) == [full] * 6


def test_heads_are_shared_by_every_mechanism():
    for mechanism in ("standard", "gqa", "mqa", "efficient", "linear", "mistral"):
        specs = layers(mechanism, TINY, 4, num_kv_heads=2)
        assert {spec.kv_heads for spec in specs} == {2}, mechanism


def test_standard_layers_take_turns_with_others():
    position = Rope(50.0)
    specs = layers("linear", TINY, 4, softmax_every=3, num_kv_heads=2, position=position)
    other, plain = (
        layers(name, TINY, 4, num_kv_heads=2, position=position)[0]
        for name in ("linear", "standard")
    )
    assert specs == [other, other, plain] * 2
    assert layers("linear", TINY, 4, softmax_every=1) == layers("standard", TINY, 4)


def test_layers_take_what_the_config_says():
    specs = layers("super_attention", replace(TINY, bias=True, dropout=0.5), 2)
    assert specs == [preset("super_attention", 8, 2, length=32, causal=True, dropout=0.5)] * 6
    linear = layers("linear", replace(TINY, dropout=0.5), 2)  # has no weights to drop
    assert linear == [preset("linear", 8, 2, causal=True, bias=False)] * 6
    assert layers("super_attention", TINY, 2, length=64)[0].max_length == 64
    assert layers("standard", TINY, 2, bias=True)[0].bias


def test_layers_turn_what_has_no_position():
    for mechanism in ("standard", "linear", "mistral"):
        specs = layers(mechanism, TINY, 2, position=Rope(50.0))
        want = Rope() if mechanism == "mistral" else Rope(50.0)
        assert {spec.position for spec in specs} == {want}
    assert layers("standard", TINY, 2)[0].position == NoPosition()


@pytest.mark.parametrize(
    ("mechanism", "options", "message"),
    [
        ("standrd", {}, "unknown mechanism 'standrd'; did you mean 'standard'"),
        ("standard", {"widnow": 4}, "unknown option of standard 'widnow'"),
        ("standard", {"layer": 1}, "a schedule numbers its layers itself"),
        ("standard", {"full_every": 2}, "full_every=2: every layer sees all earlier positions alr"),
        ("sliding_window", {"full_every": 0}, "full_every=0: give a whole number of at least 1"),
        ("linear", {"softmax_every": 0}, "softmax_every=0: give a whole number of at least 1"),
        ("standard", {"num_kv_heads": 3}, "num_kv_heads=3 does not divide num_heads=2"),
        ("linear", {"window": 4}, "Elu sums over all keys or all earlier ones, so pattern="),
        ("linformer", {}, "LowRank sums keys of all positions, so pattern="),
    ],
)
def test_layers_that_cannot_be_are_refused(mechanism, options, message):
    with pytest.raises(ConfigError, match=message):
        layers(mechanism, TINY, 2, **options)


def test_an_unknown_configuration_is_refused():
    with pytest.raises(ConfigError, match="unknown configuration 'gpt2'; did you mean 'gpt2_124m'"):
        configuration("gpt2")
