"""Divergence and loss, held against a model in one piece."""

from __future__ import annotations

import pytest
import torch

from suffice.convert import convert
from suffice.convert.calibration import attentions
from suffice.convert.search import scoring as judging
from suffice.convert.search.scoring import Judge

from .models import model, rows


@pytest.mark.parametrize("kept", [True, False])
def test_rows_are_those_of_the_whole_model(kept, monkeypatch):
    if not kept:
        monkeypatch.setattr(judging, "KEPT", 0)
    lm, batches = model(), rows()
    made = convert(lm, ["keep", "gqa:2", "gqa:1"], calibration=rows(3)).model
    judge = Judge(lm, batches)
    assert (judge.kept is None) == (not kept)
    swapped = {n: one for n, one in attentions(made).items() if "0" not in n}
    found = judge.rows(swapped)
    tokens = torch.cat(batches)
    with torch.no_grad():
        was, now = (one(tokens[:, :-1]).double().log_softmax(-1) for one in (lm, made))
    far = (was.exp() * (was - now)).sum(-1).mean(1)
    loss = -now.gather(2, tokens[:, 1:, None]).mean((1, 2))
    assert found.divergence == pytest.approx(far.tolist(), rel=1e-4)
    assert found.loss == pytest.approx(loss.tolist(), rel=1e-5)
    assert judge.rows_of(made).divergence == pytest.approx(found.divergence, rel=1e-4)
    assert attentions(lm)["blocks.1.attention"] is not swapped["blocks.1.attention"]
    nothing = judge.rows({})
    assert nothing.divergence == (0.0,) * 8
    assert nothing.loss == pytest.approx(judge.rows_of(lm).loss)
