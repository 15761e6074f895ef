"""Hybrids of transformers: what they keep of a text, and what is written and generated."""

from __future__ import annotations

import json

import pytest
import torch

from suffice.convert.sources import open_source, tensors_for
from suffice.errors import ConfigError
from suffice.models import folder
from suffice.testing import drawn
from suffice.text import Characters

pytest.importorskip("transformers")

from benchmarks.released import QWEN3_5, inputs, saved  # noqa: E402 - they need transformers


@pytest.fixture
def ours(tmp_path):
    saved("qwen3_5", tmp_path)
    return open_source(tmp_path).model


def test_recurrent_layers_keep_as_much_of_a_long_text_as_of_a_short_one(ours):
    fixed = [spec.state_bytes(1000) == spec.state_bytes(1) for spec in ours.specs]
    assert fixed == [True, True, True, False]


def test_heads_that_share_a_key_are_repeated_in_turn(ours):
    for name in "qk":
        weight = getattr(ours.blocks[0].attention, f"{name}_proj").weight.unflatten(0, (2, 2, 6))
        assert torch.equal(weight[:, 0], weight[:, 1])
        assert not torch.equal(weight[0, 0], weight[1, 0])


def test_repeated_heads_that_differ_are_not_written(ours, tmp_path):
    config = json.loads((tmp_path / "config.json").read_text())
    with torch.no_grad():
        ours.blocks[0].attention.k_proj.weight[0] += 1.0
    with pytest.raises(ConfigError, match=r"blocks.0.attention.q_proj.weight differs between"):
        tensors_for(ours, config)


def test_other_activations_are_refused(tmp_path):
    saved("qwen3_5", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "hidden_act": "gelu"}))
    with pytest.raises(ConfigError, match="hidden_act='gelu' is not supported"):
        open_source(tmp_path)


def test_the_text_model_of_one_with_pictures_is_read(tmp_path):
    import transformers

    pictures = {"depth": 1, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48}
    pictures |= {"out_hidden_size": 32, "patch_size": 4, "num_position_embeddings": 16}
    config = transformers.Qwen3_5Config(text_config=QWEN3_5, vision_config=pictures)
    theirs = drawn(transformers.Qwen3_5ForConditionalGeneration(config), seed=1).eval()
    theirs.save_pretrained(tmp_path / "whole")
    text = transformers.Qwen3_5ForCausalLM.from_pretrained(tmp_path / "whole")
    text.save_pretrained(tmp_path / "text")
    x = inputs("qwen3_5")
    assert (open_source(tmp_path / "text").model(x) - theirs(x).logits).abs().max() < 1e-4


def test_a_hybrid_becomes_a_folder_that_generates_and_is_not_exported(suffice, tmp_path):
    theirs = saved("qwen3_5", tmp_path / "theirs")
    Characters.of(["abcdefghijklmnopqrstuvwxyzABCDEFGHIJK"]).save(tmp_path / "theirs")
    done = suffice("convert", "theirs", "--to", "keep", "--quiet", "--out", "ours")
    assert (done.exit_code, done.stderr) == (0, "")
    lm, _, _ = folder.load("ours")
    x = inputs("qwen3_5")
    assert (lm(x) - theirs(x).logits).abs().max() < 1e-4
    done = suffice("generate", "ours", "--prompt", "abc", "--tokens", 6)
    assert done.exit_code == 0, done.stderr
    done = suffice("export", "ours", "--format", "hf", "--out", "written")
    assert done.exit_code != 0
    assert "no class of transformers computes this model: layer 0 has" in " ".join(
        done.stderr.split()
    )
