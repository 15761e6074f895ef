"""Stock models with recurrences compute the same with our kernels."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from suffice.hf import accelerate
from suffice.testing import assert_close

from .stock import RECURRENT, gradients, model, tokens

CLOSE = {"n": 100}  # 1e-5 of the largest magnitude


@pytest.mark.parametrize("name", RECURRENT)
class TestRecurrentModels:
    def test_logits_and_gradients_are_those_of_stock(self, name):
        stock, ours, x = model(name), model(name), tokens()
        report = accelerate(ours)
        assert report.replaced
        for m in (stock, ours):
            m(x, labels=x).loss.backward()
        with torch.no_grad():
            assert_close(ours(x).logits, stock(x).logits, **CLOSE)
        got, want = (gradients(m) for m in (ours, stock))
        assert_close(got / want.abs().max(), want / want.abs().max(), **CLOSE)

    @pytest.mark.parametrize("how", [{}, {"num_beams": 2}])
    def test_text_is_that_of_stock(self, name, how):
        made, x = model(name), tokens(length=9)
        mask = torch.ones_like(x)
        mask[0, :4] = 0
        settings = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False} | how
        want = made.generate(x, **settings)
        accelerate(made)
        assert torch.equal(made.generate(x, **settings), want)

    def test_undo_gives_the_stock_methods_back(self, name):
        made = model(name)
        report = accelerate(made)
        assert any("forward" in module.__dict__ for module in made.modules())
        report.undo()
        assert not any("forward" in module.__dict__ for module in made.modules())
        assert not report.replaced

    def test_a_second_call_changes_nothing(self, name):
        made = model(name)
        assert accelerate(made).replaced == accelerate(made).replaced


def test_copies_run_their_own_weights():
    made, x = model("qwen3_5"), tokens()
    accelerate(made)
    other = copy.deepcopy(made)
    with torch.no_grad():
        want = made(x).logits
        for parameter in made.parameters():
            parameter.zero_()
        assert_close(other(x).logits, want)


def test_what_was_pickled_is_stock_and_can_be_accelerated():
    made = model("qwen3_5")
    replaced = accelerate(made).replaced
    again = pickle.loads(pickle.dumps(made))  # noqa: S301 - our own
    for module in again.modules():
        own = module.__dict__.get("forward")
        assert own is None or own.__func__ is type(module).forward
    assert accelerate(again).replaced == replaced
