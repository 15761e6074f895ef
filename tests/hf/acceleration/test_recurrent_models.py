"""Stock models with recurrences compute the same with our kernels."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from transformers.models.mamba2 import modeling_mamba2
from transformers.models.qwen3_5 import modeling_qwen3_5

from suffice.hf import accelerate
from suffice.hf.acceleration import sequences
from suffice.hf.cache import CACHE_NAME
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

    def test_a_text_in_pieces_continues_its_states(self, name):
        stock, ours = model(name), model(name)
        accelerate(ours)
        before = name == "mamba2" and CACHE_NAME != "cache"  # of transformers before 5.24
        keys, results = "cache_params" if before else CACHE_NAME, []
        for m in (ours, stock):
            cache, logits = None, []
            for piece in tokens().split([2, 30, 1, 37], dim=1):
                with torch.no_grad():
                    out = m(piece, **{keys: cache}, use_cache=True)
                cache = out[keys]
                logits.append(out.logits)
            results.append(torch.cat(logits, dim=1))
        assert_close(*results, **CLOSE)

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


def test_steps_of_mamba2_have_the_limits_of_stock():
    stock, ours = (model("mamba2", time_step_limit=(0.2, 0.4)) for _ in range(2))
    accelerate(ours)
    with torch.no_grad():
        assert_close(ours(tokens()).logits, stock(tokens()).logits, **CLOSE)


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


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class TestTokenSteps:
    """One token in place, with shared heads and widths that fill no register."""

    @pytest.mark.parametrize("whole", [True, False])
    def test_mamba2(self, whole):
        """States of strides of their own are none for the kernel."""
        sizes = {"A": -drawn(6, 1, 1).exp().expand(6, 5, 20), "D": drawn(6, 1).expand(6, 5)}
        sizes |= {"B": drawn(2, 3, 20, seed=1), "C": drawn(2, 3, 20, seed=2), "dt_softplus": True}
        dt, bias = drawn(2, 6, 1, seed=3).expand(2, 6, 5), drawn(6, 1, seed=4).expand(6, 5)
        results = []
        for function in (sequences.mamba2_step, modeling_mamba2.mamba2_selective_state_update):
            state = drawn(2, 6, 5, 20, seed=5)
            state = state if whole else state.mT.contiguous().mT
            gated = {"dt_bias": bias, "z": drawn(2, 6, 5, seed=7)}
            out = function(state, drawn(2, 6, 5, seed=6), dt, **gated, **sizes)
            results.append((out, state))
        for got, want in zip(*results, strict=True):
            assert_close(got, want, **CLOSE)

    @pytest.mark.parametrize("width", [16, 20])
    def test_gated_delta_rule(self, width):
        q, k, v = drawn(2, 1, 2, 12), drawn(2, 1, 2, 12, seed=1), drawn(2, 1, 6, width, seed=2)
        k[1, 0, 0] = 0.0  # its length is 0
        gates = {"g": -drawn(2, 1, 6).abs(), "beta": drawn(2, 1, 6).sigmoid()}
        options = gates | {"use_qk_l2norm_in_kernel": True, "output_final_state": True}
        repeated = [x.repeat_interleave(3, dim=2) for x in (q, k)]
        results = [
            function(*heads, v, initial_state=drawn(2, 6, 12, width, seed=3), **options)
            for function, heads in (
                (sequences.gated_delta_step, (q, k)),
                (modeling_qwen3_5.torch_recurrent_gated_delta_rule, repeated),
            )
        ]
        for got, want in zip(*results, strict=True):
            assert_close(got, want, **CLOSE)

    def test_a_state_that_is_not_asked_for_stays(self):
        state = drawn(1, 2, 8, 16)
        inputs = drawn(1, 1, 2, 8), drawn(1, 1, 2, 8, seed=1), drawn(1, 1, 2, 16, seed=2)
        gates = -drawn(1, 1, 2).abs(), drawn(1, 1, 2).sigmoid()
        sequences.gated_delta_step(*inputs, *gates, initial_state=state)
        assert torch.equal(state, drawn(1, 2, 8, 16))

    @pytest.mark.parametrize(("length", "room"), [(1, 4), (1, 6), (3, 4)])
    def test_convolution(self, length, room):
        results = []
        weight, bias = drawn(20, 4), drawn(20, seed=1)
        for function in (sequences.causal_convolution_step, modeling_mamba2.causal_conv1d_update):
            state = drawn(2, 20, room, seed=2)
            out = function(drawn(2, 20, length, seed=3), state, weight, bias, "silu")
            results.append((out, state))
        for got, want in zip(*results, strict=True):
            assert_close(got, want, **CLOSE)
