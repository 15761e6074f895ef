"""Divergence and loss of variants of a model, and the work folder of a search."""

from __future__ import annotations

import pytest
import torch

from suffice.convert import convert
from suffice.convert.calibration import attention_layers
from suffice.convert.search import scoring
from suffice.convert.search.scoring import Evaluator, WorkFolder
from suffice.errors import ConfigError, DataError
from suffice.testing import assert_close

from .models import model, rows


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("rows_at_once", [1, 3, 8])
def test_rows_are_those_of_the_whole_model(cached, rows_at_once, monkeypatch):
    if not cached:
        monkeypatch.setattr(scoring, "CACHED_NUMBERS", 0)
    monkeypatch.setattr(Evaluator, "_at_once", lambda *_: rows_at_once)
    lm, batches = model(), rows()
    made = convert(lm, ["keep", "gqa:2", "gqa:1"], calibration=rows(3)).model
    evaluator = Evaluator(lm, batches)
    assert (evaluator.cached is None) == (not cached)
    swapped = {n: one for n, one in attention_layers(made).items() if "0" not in n}
    found = evaluator.with_layers(swapped)
    tokens = torch.cat(batches)
    with torch.no_grad():
        was, now = (one(tokens[:, :-1]).double().log_softmax(-1) for one in (lm, made))
    far = (was.exp() * (was - now)).sum(-1).mean(1)
    loss = -now.gather(2, tokens[:, 1:, None]).mean((1, 2))
    assert found.divergence == pytest.approx(far.tolist(), rel=1e-4)
    assert found.loss == pytest.approx(loss.tolist(), rel=1e-5)
    assert evaluator.of_model(made).divergence == pytest.approx(found.divergence, rel=1e-4)
    assert attention_layers(lm)["blocks.1.attention"] is not swapped["blocks.1.attention"]
    nothing = evaluator.with_layers({})
    assert nothing.divergence == (0.0,) * 8
    assert nothing.loss == pytest.approx(evaluator.of_model(lm).loss)


@pytest.mark.parametrize("where", ["folder", None])
def test_results_are_read_back(where, tmp_path):
    work = WorkFolder(where and tmp_path / where)
    assert work.read("scores/a b") is None
    assert work.read_tensors("fits/a b") is None
    work.write("scores/a b", [1, 2])
    work.write_tensors("fits/a b", {"x": torch.ones(2)}, {"error": 0.5})
    assert work.read("scores/a b") == [1, 2]
    tensors, facts = work.read_tensors("fits/a b")
    assert_close(tensors["x"], torch.ones(2), "exact")
    assert facts == {"error": 0.5}
    names = sorted(path.name for path in tmp_path.rglob("a*"))
    assert names == (["a%20b.json", "a%20b.safetensors"] if where else [])


def test_a_folder_holds_one_search(tmp_path):
    asked = {"model": "a", "length": 4}
    WorkFolder(tmp_path / "x").claim(asked, resume=True)
    WorkFolder(tmp_path / "x").claim(asked, resume=True)
    with pytest.raises(ConfigError, match="--resume"):
        WorkFolder(tmp_path / "x").claim(asked, resume=False)
    with pytest.raises(ConfigError, match="length was 4 and is 5"):
        WorkFolder(tmp_path / "x").claim(asked | {"length": 5}, resume=True)


def test_damaged_files_are_refused(tmp_path):
    (tmp_path / "latency.json").write_text("{")
    with pytest.raises(DataError, match=r"latency.json"):
        WorkFolder(tmp_path).read("latency")
