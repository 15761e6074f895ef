"""Maps of checkpoints: found, opened, watched, refused."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
import torch

from suffice import checkpoint
from suffice.errors import CheckpointError, ConfigError, DataError
from suffice.studio.attention_maps import Maps, checkpoints, given, opened
from tests.studio.models import picture, write_cell, write_classifier, write_lm, write_vit


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder of checkpoints of every kind."""
    folder = tmp_path_factory.mktemp("checkpoints")
    write_lm(folder / "letters")
    write_lm(folder / "deep" / "window", "sliding_window", window=4)
    write_vit(folder / "pictures")
    write_vit(folder / "classed", pooling="class_token", channels=3)
    write_classifier(folder / "texts")
    write_cell(folder / "run" / "models" / "longformer-h4-s0.safetensors")
    (folder / "notes.txt").write_text("no model")
    (folder / ".hidden").mkdir()
    write_lm(folder / ".hidden" / "own")
    return folder


@pytest.fixture
def maps(root):
    return Maps(root)


def numbers(told, layer):
    found = np.frombuffer(base64.b64decode(told["values"]), np.float32)
    return found.reshape(told["rows"], told["columns"])


def test_checkpoints_are_found(root):
    assert checkpoints(root) == [
        "classed",
        "deep/window",
        "letters",
        "pictures",
        "run/models/longformer-h4-s0.safetensors",
        "texts",
    ]
    assert checkpoints(None) == []
    assert checkpoints(root / "letters") == ["."]


def test_what_a_checkpoint_reads_is_told(maps):
    told = maps.about({"checkpoint": "letters"})
    assert (told["reads"], told["length"]) == ("text", 32)
    assert [one["name"] for one in told["layers"]] == ["blocks.0.attention", "blocks.1.attention"]
    assert told["layers"][0]["told"].startswith("Standard, Causal, Softmax; 2 heads")
    assert maps.about({"checkpoint": "texts"})["reads"] == "ids"
    cell = maps.about({"checkpoint": "run/models/longformer-h4-s0.safetensors"})
    assert (cell["reads"], cell["task"]) == ("image", "digits")


def test_rows_sum_to_one_and_look_at_nothing_later(maps):
    asked = {"checkpoint": "letters", "text": "abc, def"}
    seen = maps.overview(asked)
    assert seen["labels"] == tuple("abc, def")
    for layer, head in ((0, 0), (1, 1)):
        told = maps.layer(asked | {"layer": layer, "head": head})
        weights = numbers(told, layer)
        assert np.allclose(weights.sum(axis=1), 1.0, atol=1e-6)
        assert np.allclose(told["sums"], 1.0, atol=1e-6)
        assert (np.triu(weights, 1) == 0).all()
        assert told["high"] == weights.max()


def test_a_sparse_map_is_empty_outside_its_pattern(maps):
    asked = {"checkpoint": "deep/window", "text": "abcdefghabcdefgh", "layer": 1, "head": 0}
    weights = numbers(maps.layer(asked), 1)
    assert (np.tril(weights, -4) == 0).all()
    assert (np.diag(weights, -3) > 0).all()


def test_super_attention_has_an_effective_map(maps):
    asked = {"checkpoint": "pictures", "image": picture()}
    seen = maps.overview(asked)
    assert (seen["grid"], seen["extra"], len(seen["labels"])) == (4, 0, 16)
    assert all(layer["mixed"] for layer in seen["layers"])
    model = opened(maps.root / "pictures").model
    asked |= {"layer": 0, "head": 1}
    weights = numbers(maps.layer(asked), 0)
    effective = numbers(maps.layer(asked | {"which": "effective"}), 0)
    alignment = model.blocks[0].attention.mixing.weight[0].detach().numpy()
    assert np.allclose(effective, weights @ alignment, atol=1e-5)
    assert np.allclose(weights.sum(axis=1), 1.0, atol=1e-6)


def test_linformer_reads_fewer_keys(maps):
    asked = {"checkpoint": "texts", "text": "3 1 4, 1 5"}
    assert maps.overview(asked)["labels"] == ("3", "1", "4", "1", "5")
    told = maps.layer(asked | {"layer": 0, "head": 0})
    assert (told["rows"], told["columns"]) == (5, 4)


def test_a_class_token_stands_before_the_patches(maps):
    seen = maps.overview({"checkpoint": "classed", "image": picture(), "scaling": "plain"})
    assert (seen["extra"], seen["labels"][:2]) == (1, ("class token", "row 0, column 0"))
    assert len(seen["layers"][0]["thumbs"]["weights"]) == 2


def test_pictures_are_scaled_as_asked(root):
    model = opened(root / "pictures")
    own = given(model, {"image": picture(), "scaling": "own"}).inputs
    plain = given(model, {"image": picture(), "scaling": "plain"}).inputs
    assert own.shape == (1, 1, 8, 8)
    assert abs(float(own.mean())) < 1e-5
    assert float(own.std(correction=0)) == pytest.approx(1.0, abs=1e-4)
    assert -1.0 <= float(plain.min()) < -0.8


def test_thumbs_are_small(maps, monkeypatch):
    monkeypatch.setattr("suffice.studio.attention_maps.THUMB", 3)
    seen = maps.overview({"checkpoint": "letters", "text": "abcdefgh"})
    thumb = seen["layers"][0]["thumbs"]["weights"][0]
    assert (thumb["rows"], thumb["columns"]) == (3, 3)
    assert max(base64.b64decode(thumb["values"])) == 255


def test_the_latest_are_kept(maps):
    for text in ("a", "b", "c", "d", "a"):
        maps.overview({"checkpoint": "letters", "text": text})
    assert len(maps._seen) == 3
    for name in checkpoints(maps.root):
        maps.about({"checkpoint": name})
    assert len(maps._models) == 3


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"checkpoint": "letters"}, "give a text to read"),
        ({"checkpoint": "letters", "text": " "}, "give a text to read"),
        ({"checkpoint": "letters", "text": "a" * 33}, "33 tokens cannot be shown; give 1 to 32"),
        ({"checkpoint": "letters", "text": "xyz"}, "x"),
        ({"checkpoint": "texts", "text": "a b"}, "numbers of tokens, such as 3 1"),
        ({"checkpoint": "texts", "text": "20"}, "from 0 to 19"),
        ({"checkpoint": "pictures"}, "give a picture, JPEG or PNG"),
        ({"checkpoint": "pictures", "image": "!"}, "did not arrive whole"),
        ({"checkpoint": "pictures", "image": "AAAA"}, "the picture is no whole JPEG or PNG"),
        ({"checkpoint": "pictures", "image": picture(), "scaling": "odd"}, "scaling 'odd' is"),
        ({"checkpoint": "letters", "text": "a", "layer": 2, "head": 0}, "layer 2 is not there"),
        ({"checkpoint": "letters", "text": "a", "layer": 0, "head": True}, "head True is not"),
        ({"checkpoint": "letters", "text": "a", "which": "raw"}, "'raw' is no map"),
        ({"checkpoint": "../letters", "text": "a"}, "is not there|outside"),
        ({"checkpoint": "absent", "text": "a"}, "absent is not there"),
    ],
)  # fmt: skip
def test_wrong_questions_are_refused(maps, asked, told):
    with pytest.raises(DataError, match=told):
        maps.layer({"layer": 0, "head": 0} | asked)


def test_questions_have_a_form(maps):
    with pytest.raises(ConfigError, match="a map is asked for with a checkpoint"):
        maps.about([])
    with pytest.raises(DataError, match="start again with --checkpoints FOLDER"):
        Maps(None).about({"checkpoint": "."})
    assert Maps(None).listed({}) == {"chosen": False, "checkpoints": []}


def test_many_patches_and_channels_are_refused(tmp_path):
    write_vit(tmp_path / "fine", image_size=34)
    with pytest.raises(DataError, match="289 patches cannot be shown"):
        Maps(tmp_path).overview({"checkpoint": "fine", "image": picture()})
    write_vit(tmp_path / "many", channels=2)
    with pytest.raises(DataError, match="the model reads 2 channels"):
        Maps(tmp_path).overview({"checkpoint": "many", "image": picture()})


def test_weights_that_are_not_finite_are_told(tmp_path):
    path = write_vit(tmp_path / "broken") / "model.safetensors"
    tensors, facts = checkpoint.load(path)
    tensors["blocks.0.attention.q_proj.weight"][:] = torch.nan
    checkpoint.save(path, tensors, facts)
    with pytest.raises(DataError, match="blocks.0.attention looks with NaN"):
        Maps(tmp_path).overview({"checkpoint": "broken", "image": picture()})


def test_files_of_other_kinds_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="holds no config.json"):
        opened(tmp_path)
    path = tmp_path / "other.safetensors"
    checkpoint.save(path, {"x": torch.zeros(2)}, {"content": "model"})
    with pytest.raises(CheckpointError, match="other.safetensors is no classifier"):
        opened(path)
    facts = {"recipe": {"model": {"image_size": 8}}, "specs": []}
    checkpoint.save(path, {"x": torch.zeros(2)}, {"content": "model", "config": facts})
    with pytest.raises(CheckpointError, match="does not say what model it holds"):
        opened(path)


def test_encoders_of_others_are_refused(tmp_path, monkeypatch):
    from suffice.convert.sources.source import Source

    source = Source(model=torch.nn.Linear(1, 1), kind="bert")
    monkeypatch.setattr("suffice.studio.attention_maps.open_source", lambda path: source)
    (tmp_path / "config.json").write_text(json.dumps([1]))
    with pytest.raises(CheckpointError, match="holds a Linear; no map of it"):
        opened(tmp_path)


def test_a_search_ends(tmp_path):
    write_lm(tmp_path / "a" / "b" / "c" / "d" / "found")
    write_lm(tmp_path / "a" / "b" / "c" / "d" / "e" / "too deep")
    assert checkpoints(tmp_path) == []
    assert checkpoints(tmp_path / "a") == ["b/c/d/found"]


def test_a_beginning_is_put_before_the_text(root):
    model = opened(root / "letters")
    model.tokenizer.begin = 3
    held = given(model, {"text": "ab"})
    assert held.inputs.tolist() == [[3, 0, 1]]
    assert held.labels == ("d", "a", "b")
