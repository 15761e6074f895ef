"""Divergence and loss, held against a model in one piece."""

from __future__ import annotations

import pytest
import torch

from suffice.convert import convert
from suffice.convert.calibration import attention_layers
from suffice.convert.search import scoring
from suffice.convert.search.scoring import Evaluator

from .models import model, rows


@pytest.mark.parametrize("cached", [True, False])
def test_rows_are_those_of_the_whole_model(cached, monkeypatch):
    if not cached:
        monkeypatch.setattr(scoring, "CACHED_NUMBERS", 0)
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
