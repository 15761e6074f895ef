"""Maps of checkpoints: found, opened, watched, refused."""

from __future__ import annotations

import base64
from dataclasses import replace

import numpy as np
import pytest
import torch

from studio.tests.models import picture, write_cell, write_classifier, write_lm, write_vit
from suffice import preset
from suffice.errors import CheckpointError, ConfigError, DataError
from suffice.models import ClassifierConfig, checkpoint, folder
from suffice.text import Words
from suffice.train.recipes import recipe
from suffice_studio.attention_maps import MapServer, list_checkpoints, load_model, read_input


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
    return MapServer(root)


def numbers(head):
    values = np.frombuffer(base64.b64decode(head["values"]), np.float32)
    return values.reshape(head["rows"], head["columns"])


def test_checkpoints_are_listed(root):
    assert list_checkpoints(root) == [
        "classed",
        "deep/window",
        "letters",
        "pictures",
        "run/models/longformer-h4-s0.safetensors",
        "texts",
    ]
    assert list_checkpoints(None) == []
    assert list_checkpoints(root / "letters") == ["."]


def test_a_checkpoint_is_described(maps):
    described = maps.checkpoint({"checkpoint": "letters"})
    assert (described["reads"], described["length"]) == ("text", 32)
    assert len(described["layers"]) == 2
    assert described["layers"][0].startswith("Standard, Causal, Softmax; 2 heads")
    assert maps.checkpoint({"checkpoint": "texts"})["reads"] == "ids"
    cell = maps.checkpoint({"checkpoint": "run/models/longformer-h4-s0.safetensors"})
    assert cell["reads"] == "image"


def test_rows_sum_to_one_and_no_later_key_has_weight(maps):
    request = {"checkpoint": "letters", "text": "abc, def"}
    overview = maps.overview(request)
    assert overview["labels"] == tuple("abc, def")
    for layer, head in ((0, 0), (1, 1)):
        described = maps.head(request | {"layer": layer, "head": head})
        weights = numbers(described)
        assert np.allclose(weights.sum(axis=1), 1.0, atol=1e-6)
        assert np.allclose(described["sums"], 1.0, atol=1e-6)
        assert (np.triu(weights, 1) == 0).all()
        assert described["high"] == weights.max()


def test_super_attention_has_an_effective_map(maps):
    request = {"checkpoint": "pictures", "image": picture()}
    overview = maps.overview(request)
    assert (overview["grid"], overview["extra"], len(overview["labels"])) == (4, 0, 16)
    assert overview["maps"] == ("weights", "effective")
    model = load_model(maps.root / "pictures").network
    request |= {"layer": 0, "head": 1}
    weights = numbers(maps.head(request))
    effective = numbers(maps.head(request | {"which": "effective"}))
    alignment = model.blocks[0].attention.mixing.weight[0].detach().numpy()
    assert np.allclose(effective, weights @ alignment, atol=1e-5)
    assert np.allclose(weights.sum(axis=1), 1.0, atol=1e-6)


def test_linformer_reads_fewer_keys(maps):
    request = {"checkpoint": "texts", "text": "3 1 4, 1 5"}
    assert maps.overview(request)["labels"] == ("3", "1", "4", "1", "5")
    described = maps.head(request | {"layer": 0, "head": 0})
    assert (described["rows"], described["columns"]) == (5, 4)


def test_class_token_precedes_the_patches(maps):
    overview = maps.overview({"checkpoint": "classed", "image": picture(), "scaling": "plain"})
    assert (overview["extra"], overview["labels"][:2]) == (1, ("class token", "row 0, column 0"))
    assert len(overview["layers"][0]["thumbs"]["weights"]) == 2


def test_pictures_are_scaled(root):
    model = load_model(root / "pictures")
    own = read_input(model, {"image": picture(), "scaling": "own"}).inputs
    plain = read_input(model, {"image": picture(), "scaling": "plain"}).inputs
    assert own.shape == (1, 1, 8, 8)
    assert abs(float(own.mean())) < 1e-5
    assert float(own.std(correction=0)) == pytest.approx(1.0, abs=1e-4)
    assert -1.0 <= float(plain.min()) < -0.8


def test_thumbs_are_small(maps, monkeypatch):
    monkeypatch.setattr("suffice_studio.attention_maps.THUMB", 3)
    overview = maps.overview({"checkpoint": "letters", "text": "abcdefgh"})
    thumb = overview["layers"][0]["thumbs"]["weights"][0]
    assert (thumb["rows"], thumb["columns"]) == (3, 3)
    assert max(base64.b64decode(thumb["values"])) == 255


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        ({"checkpoint": "letters"}, "text"),
        ({"checkpoint": "letters", "text": " "}, "text"),
        ({"checkpoint": "letters", "text": "a" * 33}, "33 tokens .* 1 to 32"),
        ({"checkpoint": "letters", "text": "xyz"}, "x"),
        ({"checkpoint": "texts", "text": "a b"}, "no tokenizer"),
        ({"checkpoint": "texts", "text": "20"}, "from 0 to 19"),
        ({"checkpoint": "pictures"}, "picture"),
        ({"checkpoint": "pictures", "image": "!"}, "picture"),
        ({"checkpoint": "pictures", "image": "AAAA"}, "JPEG or PNG"),
        ({"checkpoint": "pictures", "image": picture(), "scaling": "odd"}, "'odd'"),
        ({"checkpoint": "letters", "text": "a", "layer": 2, "head": 0}, "layer 2"),
        ({"checkpoint": "letters", "text": "a", "layer": 0, "head": True}, "head True"),
        ({"checkpoint": "letters", "text": "a", "which": "raw"}, "'raw'"),
        ({"checkpoint": "../letters", "text": "a"}, "../letters"),
        ({"checkpoint": "absent", "text": "a"}, "absent"),
    ],
)  # fmt: skip
def test_wrong_requests_are_refused(maps, request_, named):
    with pytest.raises(DataError, match=named):
        maps.head({"layer": 0, "head": 0} | request_)


def test_requests_are_objects_and_need_a_folder(maps):
    with pytest.raises(ConfigError, match="object"):
        maps.checkpoint([])
    with pytest.raises(DataError, match="--checkpoints"):
        MapServer(None).checkpoint({"checkpoint": "."})
    assert MapServer(None).checkpoints({}) == {"chosen": False, "checkpoints": []}


def test_maps_of_a_retrained_cell_are_recomputed(tmp_path):
    path = write_cell(tmp_path / "models" / "longformer-h4-s0.safetensors")
    head = {"checkpoint": "models/" + path.name, "image": picture(), "layer": 0, "head": 0}
    maps = MapServer(tmp_path)
    before = maps.head(head)["values"]
    tensors, metadata = checkpoint.load(path)
    tensors["blocks.0.attention.q_proj.weight"] *= 3
    checkpoint.save(path, tensors, metadata)
    assert maps.head(head)["values"] != before


def test_many_patches_and_channels_are_refused(tmp_path):
    write_vit(tmp_path / "fine", image_size=34)
    with pytest.raises(DataError, match="289 patches cannot be shown"):
        MapServer(tmp_path).overview({"checkpoint": "fine", "image": picture()})
    write_vit(tmp_path / "many", channels=2)
    with pytest.raises(DataError, match="the model reads 2 channels"):
        MapServer(tmp_path).overview({"checkpoint": "many", "image": picture()})


def test_weights_that_are_not_finite_are_refused(tmp_path):
    path = write_vit(tmp_path / "broken") / "model.safetensors"
    tensors, facts = checkpoint.load(path)
    tensors["blocks.0.attention.q_proj.weight"][:] = torch.nan
    checkpoint.save(path, tensors, facts)
    with pytest.raises(CheckpointError, match="blocks.0.attention"):
        MapServer(tmp_path).overview({"checkpoint": "broken", "image": picture()})


def test_files_of_other_kinds_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="holds no config.json"):
        load_model(tmp_path)
    path = tmp_path / "other.safetensors"
    checkpoint.save(path, {"x": torch.zeros(2)}, {"content": "model"})
    with pytest.raises(CheckpointError, match="other.safetensors is not"):
        load_model(path)
    facts = {"recipe": {"model": {"image_size": 8}}, "specs": []}
    checkpoint.save(path, {"x": torch.zeros(2)}, {"content": "model", "config": facts})
    with pytest.raises(CheckpointError, match="other.safetensors"):
        load_model(path)


def test_translators_are_refused(tmp_path):
    words = Words(("<pad>", "<start>", "<unknown>", "<end>"), 8)
    sizes = {"source_vocabulary_size": 4, "target_vocabulary_size": 4}
    small = recipe("translation_es", scale="small")
    network = replace(small, model=replace(small.model, **sizes)).build("standard", 4)
    folder.save(tmp_path / "m", network, words, source_tokenizer=words)
    with pytest.raises(CheckpointError, match="m holds a translator, whose maps are not shown"):
        load_model(tmp_path / "m")


def test_a_classifier_is_asked_in_words(tmp_path):
    sizes = {"vocabulary_size": 5, "length": 6, "num_classes": 2, "d_model": 8, "depth": 1}
    network = ClassifierConfig(**sizes, mlp_width=8).build(preset("standard", 8, 2))
    words = Words(("<pad>", "<start>", "<unknown>", "good", "dress"), 6)
    folder.save(tmp_path / "m", network, words, classes=["no", "yes"], task="table")
    maps = MapServer(tmp_path)
    described = maps.checkpoint({"checkpoint": "m"})
    assert described["reads"] == "text"
    overview = maps.overview({"checkpoint": "m", "text": "A GOOD dress!"})
    assert overview["labels"] == ("<start>", "<unknown>", "good", "dress")


def test_search_stops_at_its_limits(tmp_path):
    write_lm(tmp_path / "a" / "b" / "c" / "d" / "found")
    write_lm(tmp_path / "a" / "b" / "c" / "d" / "e" / "too deep")
    assert list_checkpoints(tmp_path) == []
    assert list_checkpoints(tmp_path / "a") == ["b/c/d/found"]


def test_begin_token_is_prepended(root):
    model = load_model(root / "letters")
    model.tokenizer.begin = 3
    model_input = read_input(model, {"text": "ab"})
    assert model_input.inputs.tolist() == [[3, 0, 1]]
    assert model_input.labels == ("d", "a", "b")
