"""Weights are kept, start as they should, and come from safetensors alone."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
)

from suffice.errors import CheckpointError, ConfigError
from suffice.hf import (
    SufficeForCausalLM,
    SufficeForImageClassification,
    SufficeForSequenceClassification,
    SufficeModel,
    SufficeViTConfig,
    write_auto_map,
)
from suffice.hf.heads import SufficeForCausalLM as Defined
from suffice.kernels.features import RandomFeatures
from tests.hf.small import MECHANISMS, config, model, tokens


def same(left, right):
    ours, theirs = left.state_dict(), right.state_dict()
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "rfa", "toeplitz_super"])
def test_every_tensor_comes_back(mechanism, tmp_path):
    made = model(mechanism, tie_word_embeddings=mechanism == "linear")
    for module in made.modules():
        if isinstance(module, RandomFeatures):
            module.redraw(99)
    made.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if "config" not in path.name) == [
        "model.safetensors"
    ]
    read = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(read, SufficeForCausalLM)
    same(made, read)
    assert torch.equal(made(tokens()).logits, read(tokens()).logits)


@pytest.mark.parametrize("mechanism", ["super_attention", "performer", "toeplitz_super"])
def test_tensors_absent_from_a_file_start_as_ever(mechanism, tmp_path):
    made = model(mechanism)
    made.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    gone = [n for n in state if ".mixing." in n or ".features." in n or "blocks.1.mlp" in n]
    assert gone
    kept = {name: tensor for name, tensor in state.items() if name not in gone}
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    read = SufficeForCausalLM.from_pretrained(tmp_path)
    fresh = config(mechanism).lm_config().build(config(mechanism).attention_specs()).state_dict()
    for name, tensor in read.model.state_dict().items():
        if f"model.{name}" not in gone:
            assert torch.equal(tensor, made.model.state_dict()[name]), name
        elif name.endswith("omega"):
            assert torch.equal(tensor, fresh[name]), name
        else:
            spread, want = tensor.std(correction=0), fresh[name].std(correction=0)
            assert (spread - want).abs() <= 0.15 * want, name


def test_a_new_model_starts_as_the_library_does():
    torch.manual_seed(5)
    made = SufficeModel(config("super_attention"))
    torch.manual_seed(5)
    lm = config("super_attention").lm_config().build(made.config.attention_specs())
    for name, tensor in made.state_dict().items():
        assert torch.equal(tensor, lm.state_dict()[name]), name
    assert made.get_input_embeddings() is made.embedding.tokens


def test_the_other_classes_come_back(tmp_path):
    made = SufficeForSequenceClassification(config("efficient", num_labels=3, pad_token_id=0))
    made.save_pretrained(tmp_path / "text")
    same(made, AutoModelForSequenceClassification.from_pretrained(tmp_path / "text"))
    body = AutoModel.from_pretrained(tmp_path / "text")
    same(made.model, body)
    vit = SufficeForImageClassification(
        SufficeViTConfig(image_size=8, hidden_size=16, mechanism="performer", num_labels=3)
    )
    vit.save_pretrained(tmp_path / "image")
    same(vit, AutoModelForImageClassification.from_pretrained(tmp_path / "image"))


def test_half_precision_keeps_random_features_whole(tmp_path):
    model("performer").save_pretrained(tmp_path)
    read = SufficeForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    kinds = {name.rsplit(".", 1)[1]: t.dtype for name, t in read.state_dict().items()}
    assert kinds["omega"] is torch.float32
    assert kinds["weight"] is torch.bfloat16


def test_tied_weights_are_one_and_stay_so(tmp_path):
    made = model()
    assert made.lm_head.weight is made.model.embedding.tokens.weight
    made.resize_token_embeddings(60)
    assert made(tokens()).logits.shape[-1] == 60
    made.save_pretrained(tmp_path)
    read = SufficeForCausalLM.from_pretrained(tmp_path)
    assert read.lm_head.weight is read.model.embedding.tokens.weight
    assert read.to_suffice().config.vocabulary_size == 60


@pytest.mark.parametrize("tied", [True, False])
def test_there_and_back(tied):
    made = model("super_attention", tie_word_embeddings=tied)
    lm = made.to_suffice()
    assert lm.config == made.config.lm_config()
    assert torch.equal(lm(tokens()), made(tokens()).logits)
    back = SufficeForCausalLM.from_suffice(lm.train())
    assert back.training
    same(made, back)
    assert back.model.embedding.tokens.weight.data_ptr() == lm.embedding.tokens.weight.data_ptr()


def test_shards_come_back_and_may_not_lie_elsewhere(tmp_path):
    made = model()
    made.save_pretrained(tmp_path, max_shard_size="20KB")
    index = tmp_path / "model.safetensors.index.json"
    same(made, SufficeForCausalLM.from_pretrained(tmp_path))
    told = json.loads(index.read_text())
    first = next(iter(told["weight_map"]))
    for name in (
        "../x.safetensors",
        "/x.safetensors",
        "a/b.safetensors",
        "c\\d.safetensors",
        "x.bin",
    ):
        told["weight_map"][first] = name
        index.write_text(json.dumps(told))
        with pytest.raises(CheckpointError, match="names the shard"):
            SufficeForCausalLM.from_pretrained(tmp_path)
    index.write_text("[]")
    with pytest.raises(CheckpointError, match="index"):
        SufficeForCausalLM.from_pretrained(tmp_path)
    index.rename(tmp_path / "model.safetensors.index.fp8.json")
    with pytest.raises(CheckpointError, match="index"):
        SufficeForCausalLM.from_pretrained(tmp_path, variant="fp8")


def test_nothing_is_pickled(tmp_path):
    made = model()
    with pytest.raises(ConfigError, match="safe_serialization=False would pickle"):
        made.save_pretrained(tmp_path, safe_serialization=False)
    made.config.save_pretrained(tmp_path)
    torch.save(made.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(OSError, match="model.safetensors"):
        SufficeForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="use_safetensors=False would unpickle"):
        SufficeForCausalLM.from_pretrained(tmp_path, use_safetensors=False)
    assert made.fresh_model() is None
    same(
        made,
        SufficeForCausalLM.from_pretrained(None, config=made.config, state_dict=made.state_dict()),
    )


def test_programs_that_do_not_import_this_library_find_it(tmp_path, monkeypatch):
    made = model()
    made.save_pretrained(tmp_path)
    write_auto_map(tmp_path)
    told = json.loads((tmp_path / "config.json").read_text())
    assert told["auto_map"]["AutoModel"] == "modeling_suffice.SufficeModel"
    scope = {}
    exec((tmp_path / "modeling_suffice.py").read_text(), scope)  # noqa: S102 - written above
    assert scope["SufficeForCausalLM"] is Defined
    same(made, AutoModelForCausalLM.from_pretrained(tmp_path))
    with pytest.raises(CheckpointError, match="config.json"):
        write_auto_map(tmp_path / "none")
    SufficeViTConfig().save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="a model of type 'suffice_vit'"):
        write_auto_map(tmp_path)
