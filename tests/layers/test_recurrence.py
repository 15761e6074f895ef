"""Layers of recurrences in float32, by native kernels, against the same layers in float64."""

from __future__ import annotations

import copy

import pytest
import torch

from suffice import Attention, preset
from suffice.ops.native import stock
from suffice.testing import assert_close, drawn, normal

MECHANISMS = ("deltanet", "gated_deltanet", "mamba2")
BATCH, LENGTH, D_MODEL = 2, 11, 16
SUMMED = BATCH * LENGTH * D_MODEL * 16  # terms of the gradient of a gate: positions and states


def layer_of(mechanism: str) -> Attention:
    return drawn(Attention(preset(mechanism, D_MODEL, 2)), seed=4).float()


def restrictions(case: str) -> dict[str, torch.Tensor]:
    if case == "padding":
        valid = torch.ones(BATCH, LENGTH, dtype=torch.bool)
        valid[0, :3], valid[1, 5] = False, False
        return {"valid": valid}
    if case == "documents":
        numbers = [[7, 7, 2, 2, 2, 7, 7, 7, 1, 2, 2], [3] * LENGTH]
        return {"segments": torch.tensor(numbers)}
    return {}


def run(layer: Attention, x: torch.Tensor, case: str) -> list[torch.Tensor]:
    """Return the outputs, and the gradients of the input and of all parameters."""
    x = x.clone().requires_grad_()
    if case == "chunks":
        state = layer.state()
        out = torch.cat([layer(part, state=state) for part in x.split((4, 2, 5), dim=1)], dim=1)
    else:
        out = layer(x, **restrictions(case))
    out.square().sum().backward()
    return [out.detach(), x.grad, *(p.grad for p in layer.parameters())]


@pytest.mark.parametrize("case", ["plain", "padding", "documents", "chunks"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_values_and_gradients(mechanism, case, monkeypatch):
    layer, x = layer_of(mechanism), normal(BATCH, LENGTH, D_MODEL, seed=1, dtype=torch.float32)
    exact = run(copy.deepcopy(layer).double(), x.double(), case)
    taken = []
    suits = stock.suits
    monkeypatch.setattr(stock, "suits", lambda *t: taken.append(suits(*t)) or taken[-1])
    for got, want in zip(run(layer, x, case), exact, strict=True):
        assert_close(got, want.float(), n=SUMMED)
    if stock.available():
        assert any(taken)


@pytest.mark.parametrize("place", [0, 2, 4, 5, 7, 10])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_token_that_is_not_finite_spoils_those_after_it_in_its_document(mechanism, place):
    layer, x = layer_of(mechanism), normal(1, LENGTH, D_MODEL, seed=2, dtype=torch.float32)
    numbers = torch.tensor([[0] * 5 + [1] * 6])
    want = layer(x, segments=numbers)
    x[0, place] = torch.inf
    got = layer(x, segments=numbers)
    at = torch.arange(LENGTH)
    sound = (at < place) | (numbers[0] != numbers[0, place])
    assert torch.equal(got.isfinite().all(dim=-1)[0], sound)
    assert_close(got[:, sound], want[:, sound])


def test_a_value_that_overflows_with_its_step_stays_with_later_tokens():
    """Mamba-2 multiplies values by steps: 1e30 by 1e30 is no float32, though both factors are."""
    layer, x = layer_of("mamba2"), normal(1, LENGTH, D_MODEL, seed=1).float()
    want = layer(x)[:, :7]
    x[:, 7:] = 1e30 * layer.recurrence.gates.decay_proj.weight.detach().sign()[0]
    assert_close(layer(x)[:, :7], want, n=SUMMED)
