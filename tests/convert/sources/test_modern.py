"""ModernBERT and EuroBERT on padded texts, converted, and as the start of a comparison."""

from __future__ import annotations

import copy
import json

import pytest
import torch

import suffice
from suffice.convert import convert
from suffice.convert.sources import open_source
from suffice.errors import CheckpointError, ConfigError
from suffice.models import classifier as module
from suffice.patterns import Full, Window
from suffice.positions import Rope
from suffice.testing import assert_close

transformers = pytest.importorskip("transformers")

from benchmarks.released import answer, cases, saved  # noqa: E402 - it needs transformers

ENCODERS = [name for name in cases() if name.startswith(("modernbert", "eurobert"))]
LENGTHS = (20, 7, 1, 13)


def padded():
    draws = torch.Generator().manual_seed(3)
    valid = torch.arange(20)[None] < torch.tensor(LENGTHS)[:, None]
    return torch.randint(3, 37, (4, 20), generator=draws).masked_fill(~valid, 0), valid


@pytest.mark.parametrize("saving", [0, float("inf")], ids=["packed", "padded"])
@pytest.mark.parametrize("name", ENCODERS)
def test_padded_texts_are_those_of_transformers(name, saving, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PACKED_SAVING", saving)
    theirs, (tokens, valid) = saved(name, tmp_path), padded()
    with torch.no_grad():
        out, ours = theirs(tokens, attention_mask=valid.long()), open_source(tmp_path).model
        got = ours(tokens, valid)
        if ours.config.pooling == "none":
            assert (got[valid] - out.logits[valid]).abs().max() < 1e-4
            return
        if hasattr(out, "logits"):
            want = out.logits
        else:
            real = valid[..., None]
            want = (out.last_hidden_state * real).sum(dim=1) / real.sum(dim=1)
    assert (got - want).abs().max() < 1e-4


def test_windows_and_bases_are_those_of_each_layer(tmp_path):
    saved("modernbert", tmp_path)
    patterns = [spec.pattern for spec in open_source(tmp_path).model.specs]
    assert patterns == [Full(), Window(4), Window(4), Full()]
    bases = [spec.position for spec in open_source(tmp_path).model.specs]
    assert bases == [Rope(160_000.0), Rope(10_000.0), Rope(10_000.0), Rope(160_000.0)]


def test_an_older_file_has_its_bases_and_layers_in_other_words(tmp_path):
    theirs, (tokens, _) = saved("modernbert", tmp_path), padded()
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for name in ("rope_parameters", "layer_types"):
        del config[name]
    older = {"global_rope_theta": 300.0, "local_rope_theta": 20.0, "global_attn_every_n_layers": 2}
    path.write_text(json.dumps(config | older))
    with torch.no_grad():
        want = answer(type(theirs).from_pretrained(tmp_path).eval(), tokens)
        assert (open_source(tmp_path).model(tokens) - want).abs().max() < 1e-4
    path.write_text(json.dumps(config | {"classifier_pooling": "max"}))
    with pytest.raises(ConfigError, match="classifier_pooling='max'"):
        open_source(tmp_path)
    path.write_text(json.dumps(config | {"architectures": ["ModernBertForQuestionAnswering"]}))
    with pytest.raises(CheckpointError, match="ModernBertForQuestionAnswering"):
        open_source(tmp_path)


def test_cheaper_attention_with_a_certificate(tmp_path):
    saved("modernbert", tmp_path)
    model, (tokens, valid) = open_source(tmp_path).model, padded()
    converted = convert(model, "gqa:2", calibration=[tokens], held_out=[tokens])
    assert {spec.num_kv_heads for spec in converted.model.specs} == {2}
    assert [spec.pattern for spec in converted.model.specs] == [s.pattern for s in model.specs]
    assert all(0.0 < layer.measured < 1.0 for layer in converted.certificate.layers)
    near = convert(model, "window:20", naive=True).model  # texts of 20 tokens fit in it
    with torch.no_grad():
        assert (near(tokens, valid) - model(tokens, valid)).abs().max() < 1e-5


def test_loading_a_classifier(tmp_path):
    saved("modernbert", tmp_path / "classes")
    loaded = suffice.load(tmp_path / "classes")
    assert (type(loaded).__name__, len(loaded.classes)) == ("TextClassifier", 3)
    for name in ("modernbert-masked", "modernbert-bare"):
        saved(name, tmp_path / name)
        with pytest.raises(ConfigError, match="open_source"):
            suffice.load(tmp_path / name)


def test_a_comparison_starts_at_a_checkpoint(tmp_path):
    """Each training begins with the checkpoint's weights, converted or not."""
    saved("modernbert", tmp_path / "start")
    model, (tokens, valid) = open_source(tmp_path / "start").model, padded()
    starts = {
        "as it is": lambda: copy.deepcopy(model).train(),
        "gqa:2": lambda: convert(model, "gqa:2", naive=True).model.train(),
    }
    begun = {}

    def train(make, seed):
        torch.manual_seed(seed)
        student, labels = make(), tokens[:, 0] % 3
        begun.setdefault(make.name, student(tokens, valid).detach())
        optimiser = torch.optim.AdamW(student.parameters(), lr=1e-3)
        for _ in range(3):
            loss = torch.nn.functional.cross_entropy(student(tokens, valid), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return (student(tokens, valid).argmax(dim=1) == labels).float().mean().item()

    result = suffice.compare(train, starts, seeds=2, chance=1 / 3, quiet=True, out=tmp_path / "run")
    with torch.no_grad():
        assert_close(begun["as it is"], model(tokens, valid))
        assert (begun["gqa:2"] - begun["as it is"]).abs().max() > 1e-3
    flops = {cell.mechanism: cell.flops for cell in result.results.cells}
    parameters = {cell.mechanism: cell.parameters_model for cell in result.results.cells}
    assert 0 < flops["gqa:2"] < flops["as it is"]
    assert parameters["gqa:2"] < parameters["as it is"]
