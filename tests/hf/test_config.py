"""The configuration says what the model is, and what others read."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoConfig

from suffice.errors import ConfigError
from suffice.hf import SufficeConfig, SufficeForCausalLM, SufficeViTConfig
from suffice.memory import Rolling
from suffice.models import LMConfig
from suffice.patterns import Causal, Window
from suffice.presets import schedule
from suffice.spec import AttentionSpec
from tests.hf.small import MECHANISMS, SIZES, config


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_file_says_everything(mechanism, tmp_path):
    made = config(mechanism)
    made.save_pretrained(tmp_path)
    read = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(read, SufficeConfig)
    assert read.attention_specs() == made.attention_specs()
    assert read.lm_config() == made.lm_config()
    written = json.loads((tmp_path / "config.json").read_text())
    for name in ("vocab_size", "norm_eps", "num_key_value_heads", "layer_types", "specs"):
        assert written[name] == getattr(made, name)


def test_sizes_of_a_suffice_model_come_back():
    lm = LMConfig(
        vocabulary_size=9, length=8, d_model=16, depth=3, mlp_width=5, norm="rms",
        activation="swiglu", positions="none", bias=False, tied=False, dropout=0.25, eps=1e-4,
        start=0.3,
    )  # fmt: skip
    specs = schedule("mistral", 16, 4, depth=3, window=4, full_every=2, causal=True)
    made = SufficeConfig.of(lm, specs, eos_token_id=3)
    assert made.lm_config() == lm
    assert made.initializer_range == 0.3
    assert made.attention_specs() == specs
    assert len(made.specs) == 3
    assert made.eos_token_id == 3


def test_other_programs_read_their_own_words():
    window = AttentionSpec(d_model=32, num_heads=4, num_kv_heads=2, pattern=Window(7) & Causal())
    full = AttentionSpec(d_model=32, num_heads=4, num_kv_heads=2, pattern=Causal())
    lm = LMConfig(vocabulary_size=9, length=8, d_model=32, depth=2, mlp_width=5)
    made = SufficeConfig.of(lm, [window, full])
    assert made.layer_types == ["sliding_attention", "full_attention"]
    assert made.sliding_window == 7
    assert (made.num_attention_heads, made.num_key_value_heads, made.head_dim) == (4, 2, 8)
    assert config("linear").layer_types == ["linear_attention"] * 2
    assert config("standard").sliding_window is None


def test_heads_may_be_shared_by_name():
    spec = config("standard", num_key_value_heads=2, head_dim=16).attention_specs()[0]
    assert (spec.kv_heads, spec.head_width) == (2, 16)


def test_a_memory_is_kept():
    made = config(memory=Rolling(8).to_json())
    assert SufficeConfig.from_dict(made.to_dict()).memory_value() == Rolling(8)


def test_weights_start_as_the_configuration_says(tmp_path):
    torch.manual_seed(1)
    made = SufficeForCausalLM(config("efficient", initializer_range=0.3))
    assert made.to_suffice().config.start == 0.3
    assert made.model.blocks[0].mlp.up.weight.std().item() == pytest.approx(0.3, rel=0.1)
    assert made.model.blocks[0].mlp.down.weight.std().item() == pytest.approx(0.15, rel=0.1)
    samples = made.resize_token_embeddings(4000, mean_resizing=False).weight[50:]
    assert samples.std().item() == pytest.approx(0.3, rel=0.02)
    made.config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written.pop("initializer_range") == 0.3
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert AutoConfig.from_pretrained(tmp_path).lm_config().start == 0.02


def test_contradictions_are_refused():
    specs = config().specs
    sizes = {key: value for key, value in SIZES.items() if key != "num_attention_heads"}
    with pytest.raises(ConfigError, match="num_attention_heads=8 where the specs say 4"):
        SufficeConfig(**sizes, specs=specs, num_attention_heads=8)
    with pytest.raises(ConfigError, match="mechanism=.linear. and specs"):
        SufficeConfig(**sizes, specs=specs, mechanism="linear")
    with pytest.raises(ConfigError, match="specs holds 2 layers for num_hidden_layers=3"):
        SufficeConfig(**(sizes | {"num_hidden_layers": 3}), specs=specs * 2)
    with pytest.raises(ConfigError, match="unknown mechanism 'eficient'"):
        config("eficient")
    with pytest.raises(ConfigError, match="did you mean 'gelu'"):
        config(hidden_act="gelo")


def test_a_vision_file_says_everything(tmp_path):
    made = SufficeViTConfig(mechanism="super_attention", head_widths=[8], num_labels=5)
    made.save_pretrained(tmp_path)
    read = AutoConfig.from_pretrained(tmp_path)
    assert read.vit_config() == made.vit_config()
    assert read.attention_specs() == made.attention_specs()
    assert read.vit_config().num_classes == 5
    with pytest.raises(ConfigError, match="mechanism=.linear. and specs"):
        SufficeViTConfig(mechanism="linear", specs=made.specs)
