from __future__ import annotations

import pytest
import torch

from suffice.errors import ConfigError
from suffice.train import Training
from suffice.train.optimiser import build, load_state, state_tensors

from .cases import Tiny


def settings(**more):
    return Training(epochs=1, batch_size=4, learning_rate=0.1, **more)


def step(model, optimiser):
    optimiser.zero_grad()
    model(torch.ones(2, 1, 4, 4)).square().sum().backward()
    optimiser.step()


def test_only_tensors_of_two_dimensions_are_decayed():
    model = Tiny()
    optimiser = build(model, settings(weight_decay=0.5, betas=(0.8, 0.9)))
    decayed, others = optimiser.param_groups
    assert decayed["params"] == [model.hidden.weight, model.head.weight]
    assert others["params"] == [model.hidden.bias, model.head.bias]
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.5, 0.0)
    assert decayed["betas"] == (0.8, 0.9)
    assert decayed["fused"] is True


def test_frozen_parameters_are_left_out():
    model = Tiny()
    model.head.requires_grad_(False)
    groups = build(model, settings()).param_groups
    assert [group["params"] for group in groups] == [[model.hidden.weight], [model.hidden.bias]]


def test_a_model_of_matrices_alone_has_no_empty_group():
    model = torch.nn.Linear(2, 2, bias=False)
    assert len(build(model, settings(weight_decay=0.1)).param_groups) == 1


def test_a_model_without_anything_to_learn_is_refused():
    model = Tiny().requires_grad_(False)
    with pytest.raises(ConfigError, match="no parameter that requires a gradient; unfreeze"):
        build(model, settings())


def test_state_moves_to_another_optimiser_exactly():
    first, second = Tiny(), Tiny()
    original, loaded = (build(m, settings(weight_decay=0.1)) for m in (first, second))
    for _ in range(3):
        step(first, original)
    second.load_state_dict(first.state_dict())
    tensors = {name: t.clone() for name, t in state_tensors(original, first).items()}
    assert tensors["step/head.bias"] == 3
    assert tensors["exp_avg/hidden.weight"].abs().sum() > 0
    load_state(loaded, second, tensors)
    for model, optimiser in ((first, original), (second, loaded)):
        step(model, optimiser)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert tensors["step/head.bias"] == 3, "the optimiser must own copies"


def test_state_before_the_first_step_is_zeros_and_changes_nothing():
    first, second = Tiny(), Tiny()
    original, loaded = (build(m, settings()) for m in (first, second))
    tensors = state_tensors(original, first)
    assert all(not t.any() for t in tensors.values())
    assert len(tensors) == 3 * 4
    load_state(loaded, second, tensors)
    for model, optimiser in ((first, original), (second, loaded)):
        step(model, optimiser)
    assert torch.equal(first.head.weight, second.head.weight)
