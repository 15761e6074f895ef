from __future__ import annotations

import signal
from dataclasses import replace

import pytest
import torch

from suffice import preset
from suffice.errors import CheckpointError, ConfigError
from suffice.models import ViTConfig
from suffice.train import Interrupted, Silent, Training, fit
from suffice.train.language import LMTraining
from suffice.train.optimiser import build, load_state, state_tensors

from .cases import Tiny, images

needs_muon = pytest.mark.skipif(
    not hasattr(torch.optim, "Muon"), reason="torch has no Muon before 2.9"
)


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
    with pytest.raises(ConfigError, match="no parameter that requires a gradient"):
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


MUON = {"weight_decay": 0.1, "optimiser": "muon"}


def small(seed=0):
    torch.manual_seed(seed)
    config = ViTConfig(image_size=4, patch_size=2, num_classes=6, d_model=8, depth=1, mlp_width=8)
    return config.build(preset("standard", 8, 2))


def learn(model, optimiser):
    optimiser.zero_grad()
    model(torch.ones(2, 1, 4, 4)).square().sum().backward()
    optimiser.step()


@needs_muon
def test_muon_steps_the_matrices_of_the_blocks_and_adamw_the_rest():
    model = small()
    muon, adamw = build(model, settings(**MUON)).parts
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    by_muon = {name_of[id(p)] for group in muon.param_groups for p in group["params"]}
    rest = {name_of[id(p)] for group in adamw.param_groups for p in group["params"]}
    assert by_muon == {n for n, p in model.named_parameters() if "blocks" in n and p.dim() == 2}
    assert by_muon | rest == set(name_of.values())
    assert not by_muon & rest
    assert any("head" in name for name in rest)


@needs_muon
def test_state_of_muon_moves_to_another_optimiser_exactly():
    first, second = small(0), small(1)
    original, loaded = build(first, settings(**MUON)), build(second, settings(**MUON))
    for _ in range(3):
        learn(first, original)
    second.load_state_dict(first.state_dict())
    tensors = {name: t.clone() for name, t in state_tensors(original, first).items()}
    assert any(name.startswith("momentum_buffer/") and t.any() for name, t in tensors.items())
    load_state(loaded, second, tensors)
    for model, optimiser in ((first, original), (second, loaded)):
        learn(model, optimiser)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


class Press(Silent):
    """Ctrl-C after the seventh step."""

    def step(self, done, total):
        if done == 7:
            signal.raise_signal(signal.SIGINT)


@needs_muon
def test_a_training_by_muon_resumes_to_the_very_same_weights(tmp_path):
    training = Training(epochs=3, batch_size=4, learning_rate=0.02, optimiser="muon")
    whole, resumed = small(), small()
    fit(whole, images(), training, seed=0)
    path = tmp_path / "run"
    with pytest.raises(Interrupted):
        fit(small(), images(), training, seed=0, checkpoint=path, progress=Press())
    fit(resumed, images(), training, seed=0, checkpoint=path, resume=True)
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
    adamw = replace(training, optimiser="adamw")
    with pytest.raises(CheckpointError, match="'muon'"):
        fit(small(), images(), adamw, seed=0, checkpoint=path, resume=True)


@needs_muon
def test_muon_without_a_block_is_refused():
    with pytest.raises(ConfigError, match="no block with a matrix that learns"):
        build(Tiny(), settings(**MUON))


def test_muon_is_refused_in_words_where_torch_lacks_it(monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    with pytest.raises(ConfigError, match="has no Muon"):
        settings(optimiser="muon")


def test_an_unknown_optimiser_is_refused():
    with pytest.raises(ConfigError, match="muon"):
        settings(optimiser="moun")


@needs_muon
def test_a_language_model_is_not_sharded_under_muon():
    sizes = {"steps": 1, "batch_size": 1, "length": 1, "learning_rate": 0.1}
    with pytest.raises(ConfigError, match="muon needs whole matrices"):
        LMTraining(**sizes, shard=True, optimiser="muon")
