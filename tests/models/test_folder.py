"""Language models in folders: there and back, and hostile files."""

from __future__ import annotations

import json
import os
import pickle

import pytest
import torch
from safetensors.torch import save_file

from suffice.errors import CheckpointError, ConfigError, ShapeError
from suffice.models import LMConfig, checkpoint, configuration, folder
from suffice.presets import PRESETS, preset
from suffice.text import Characters

TOKENIZER = Characters("abcdefgh")
NONCAUSAL = ("linformer",)


def model(mechanism="efficient", **changes):
    options = {"vocabulary_size": 8, "length": 16, **changes}
    config, specs = configuration("nanogpt_char_cpu", mechanism, **options)
    return config.build(specs).eval()


@pytest.fixture
def saved(tmp_path):
    folder.save(tmp_path, model(), TOKENIZER)
    return tmp_path


@pytest.mark.parametrize("mechanism", [name for name in PRESETS if name not in NONCAUSAL])
def test_every_mechanism_comes_back(tmp_path, mechanism):
    lm = model(mechanism)
    folder.save(tmp_path / "run" / "a", lm, TOKENIZER, recipe="mine", training={"steps": 3})
    again, tokenizer, facts = folder.load(tmp_path / "run" / "a")
    assert (again.config, again.specs) == (lm.config, lm.specs)
    assert facts == {"recipe": "mine", "training": {"steps": 3}}
    assert tokenizer.encode("fade") == [5, 0, 3, 4]
    tokens = torch.randint(8, (2, 16))
    with torch.no_grad():
        assert torch.equal(again(tokens), lm(tokens))
    assert not again.training
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert set(os.listdir(tmp_path / "run" / "a")) == names


def test_weights_keep_their_dtype_or_take_another(tmp_path):
    folder.save(tmp_path, model().bfloat16(), TOKENIZER)
    assert folder.load(tmp_path)[0].norm.weight.dtype == torch.bfloat16
    assert folder.load(tmp_path, dtype=torch.float64)[0].norm.weight.dtype == torch.float64


def test_unsaveable_models_and_facts_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="'specs' is a reserved entry"):
        folder.save(tmp_path, model(), TOKENIZER, specs=[])
    with pytest.raises(ShapeError, match="8 tokens and the model 7"):
        folder.save(tmp_path, model(vocabulary_size=7), TOKENIZER)
    with pytest.raises(CheckpointError, match="facts are not JSON"):
        folder.save(tmp_path, model(), TOKENIZER, loss=float("nan"))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"cannot write .*file \(File exists\)"):
        folder.save(tmp_path / "file", model(), TOKENIZER)


def changed(path, **entries):
    data = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(data | entries))


def test_a_folder_without_a_model_is_refused(tmp_path):
    for path, match in ((tmp_path, "holds no model"), (tmp_path / "absent", "no such folder: ")):
        with pytest.raises(CheckpointError, match=match):
            folder.load(path)


def test_a_model_of_transformers_is_refused_with_the_converter(saved):
    (saved / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(CheckpointError, match="transformers"):
        folder.load(saved)


@pytest.mark.parametrize("content", ["{", "\xff", "[" * 100_000])
def test_a_config_that_is_not_json_is_refused(saved, content):
    (saved / "config.json").write_bytes(content.encode("latin1"))
    with pytest.raises(CheckpointError, match="cannot be loaded: config.json cannot be read"):
        folder.load(saved)


@pytest.mark.parametrize(
    ("entries", "match"),
    [
        ({"specs": None}, 'not a JSON object with "model"'),
        ({"specs": [3]}, "describe a model of kind 'language model'"),
        ({"specs": [{"d_model": "../x"}]}, "describe a model of kind 'language model'"),
        ({"model": None}, "LMConfig"),
        ({"model": {"shell": "rm"}}, "shell"),
        ({"specs": []}, "do not fit each other"),
    ],
)
def test_a_config_of_something_else_is_refused(saved, entries, match):
    changed(saved, **entries)
    with pytest.raises(CheckpointError, match=match):
        folder.load(saved)


def test_a_config_of_enormous_sizes_takes_no_memory(saved):
    data = json.loads((saved / "config.json").read_text())
    changed(saved, model=data["model"] | {"vocabulary_size": 1 << 40})
    with pytest.raises(CheckpointError, match=r"does not fit: 'embedding.tokens.weight' has shape"):
        folder.load(saved)
    for huge in (1 << 62, 1 << 70):  # torch says these two in two ways, one of many lines
        changed(saved, model=data["model"] | {"vocabulary_size": huge, "length": huge})
        with pytest.raises(
            CheckpointError,
            match=r"(do not fit each other|digits; give one of 62 bits) ?.{,300}\. Give a f",
        ):
            folder.load(saved)


def test_weights_of_another_model_are_refused(saved):
    weights = saved / "model.safetensors"
    content, _ = checkpoint.load(weights)
    save_file({**content, "../../evil": torch.ones(1)}, weights)
    with pytest.raises(CheckpointError, match=r"'../../evil' is not expected"):
        folder.load(saved)
    save_file({n: t.half() if "norm" in n else t for n, t in content.items()}, weights)
    with pytest.raises(CheckpointError, match="2 dtypes"):
        folder.load(saved)
    weights.write_bytes(pickle.dumps({"a": os.system}))
    with pytest.raises(CheckpointError, match="safetensors"):
        folder.load(saved)
    weights.write_bytes(b"\x02" + b"\0" * 7 + b"{]")
    with pytest.raises(CheckpointError, match="safetensors"):
        folder.load(saved)
    weights.unlink()
    with pytest.raises(CheckpointError, match="does not exist"):
        folder.load(saved)


def test_a_tokenizer_that_does_not_fit_is_refused(saved):
    Characters("abcdefghi").save(saved)
    with pytest.raises(CheckpointError, match="has no tokenizer that fits: the tokenizer has 9"):
        folder.load(saved)
    (saved / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="has no tokenizer that fits: .*does not exist"):
        folder.load(saved)


def test_sizes_may_exceed_the_tokenizer(tmp_path):
    lm = model(vocabulary_size=64)
    folder.save(tmp_path, lm, TOKENIZER)
    assert isinstance(folder.load(tmp_path)[0].config, LMConfig)


@pytest.mark.parametrize("taken", ["config.json", "tokenizer.json", "model.safetensors"])
def test_files_of_two_models_are_refused_together(taken, tmp_path):
    """All shapes are equal: only the digests in the weights tell that they do not belong."""
    sizes = {"vocabulary_size": 4, "length": 8, "d_model": 8, "depth": 1, "mlp_width": 8}
    for name, window, alphabet in (("one", 2, "abcd"), ("other", 3, "dcba")):
        spec = preset("longformer", 8, 2, causal=True, window=window)
        folder.save(tmp_path / name, LMConfig(**sizes).build(spec), Characters(alphabet))
    (tmp_path / "one" / taken).write_bytes((tmp_path / "other" / taken).read_bytes())
    with pytest.raises(CheckpointError, match="another"):
        folder.load(tmp_path / "one")


def test_a_measured_loss_is_that_of_the_weights(tmp_path):
    """A kill between the config and the weights leaves the weights with their own loss."""
    sizes = {"vocabulary_size": 4, "length": 8, "d_model": 8, "depth": 1, "mlp_width": 8}
    lm = LMConfig(**sizes).build(preset("standard", 8, 2, causal=True))
    folder.save(tmp_path / "one", lm, Characters("abcd"), measured={"validation_loss": 2.0})
    folder.save(tmp_path / "other", lm, Characters("abcd"), measured={"validation_loss": 1.0})
    newer = (tmp_path / "other" / "config.json").read_bytes()
    (tmp_path / "one" / "config.json").write_bytes(newer)
    assert folder.load(tmp_path / "one")[2]["measured"] == {"validation_loss": 2.0}
