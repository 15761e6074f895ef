from __future__ import annotations

import json

import pytest
import torch

from suffice.errors import CheckpointError
from suffice.models import checkpoint
from suffice.train import Training, training_state
from suffice.train.loop import EpochState
from suffice.train.optimiser import build
from suffice.train.training_state import random_states, set_random_states

from .cases import Tiny, images, weights

TRAINING = Training(epochs=3, batch_size=4, learning_rate=0.1)
CPU = torch.device("cpu")


def begin(*, seed=0, model_seed=0, training=TRAINING, dataset=None):
    model = Tiny(seed=model_seed)
    dataset = dataset or images()
    data = {"name": "images", "train": len(dataset.train), "validation": len(dataset.validation)}
    return EpochState.begin(model, training, data=data, seed=seed, device=CPU)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.safetensors"


def write_changed(path, *, facts=None, tensors=None):
    """Write the snapshot of a fresh run with some of its facts or tensors replaced."""
    training_state.write(path, begin())
    stored, metadata = checkpoint.load(path)
    checkpoint.save(path, stored | (tensors or {}), metadata | (facts or {}))


def record(epoch=1, **changes):
    numbers = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "seconds")
    return {"epoch": epoch, **dict.fromkeys(numbers, 0.5), **changes}


def test_every_tensor_of_a_run_is_in_the_file_by_name(path):
    state = begin()
    training_state.write(path, state)
    tensors, facts = checkpoint.load(path)
    for name, tensor in weights(state.model).items():
        assert torch.equal(tensors[f"model/{name}"], tensor)
        assert torch.equal(tensors[f"best/{name}"], tensor)
        assert {f"exp_avg/{name}", f"exp_avg_sq/{name}", f"step/{name}"} < tensors.keys()
    assert torch.equal(tensors["random/cpu"], torch.get_rng_state())
    assert len(tensors) == 5 * 4 + 2
    assert facts["identity"]["data"] == {"name": "images", "train": 23, "validation": 9}
    assert facts["identity"]["training"]["betas"] == [0.9, 0.999]
    assert (facts["epoch"], facts["step"], facts["history"]) == (1, 0, [])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"seed": 7}, r"seed was 0 and is 7\. Give the settings"),
        (
            {"training": Training(epochs=3, batch_size=5, learning_rate=0.2)},
            r"training\.batch_size was 4 and is 5; training\.learning_rate was 0\.1 and",
        ),
        ({"dataset": images(train=24)}, r"data\.train was 23 and is 24"),
    ],
)
def test_another_run_is_refused_with_its_differences(path, other, message):
    training_state.write(path, begin())
    before = weights((state := begin(model_seed=1, **other)).model)
    with pytest.raises(CheckpointError, match=rf"is of another run: .*{message}"):
        training_state.read(path, state)
    assert all(torch.equal(before[n], t) for n, t in state.model.state_dict().items())


def test_another_model_is_refused_by_its_tensors(path):
    training_state.write(path, begin())
    state = begin()
    state.model.head = torch.nn.Linear(12, 7)
    state.optimiser = build(state.model, TRAINING)
    with pytest.raises(CheckpointError, match=r"'model/head\.weight'"):
        training_state.read(path, state)


def test_a_file_of_something_else_is_refused(path):
    checkpoint.save_model(path, Tiny(), {})
    with pytest.raises(CheckpointError, match="is not a training checkpoint"):
        training_state.read(path, begin())


def test_a_file_without_identity_is_refused(path):
    write_changed(path, facts={"identity": None})
    with pytest.raises(CheckpointError, match="is of another run: seed was absent and is 0"):
        training_state.read(path, begin())


@pytest.mark.parametrize(
    "facts",
    [
        {"epoch": "1"},
        {"epoch": True},
        {"epoch": 2},
        {"step": -1},
        {"seconds": "0"},
        {"stopped_early": 0},
        {"best_epoch": 1},
        {"history": None},
        {"history": [3]},
        {"history": [{"epoch": 1}], "epoch": 2, "best_epoch": 1},
        {"history": [record(2)], "epoch": 2, "best_epoch": 1},
        {"history": [record(train_loss="0")], "epoch": 2, "best_epoch": 1},
        {"history": [record()], "epoch": 2, "best_epoch": 0},
        {"history": [record()], "epoch": 2, "best_epoch": 2},
    ],
    ids=json.dumps,
)
def test_counters_that_make_no_sense_are_refused(path, facts):
    write_changed(path, facts=facts)
    with pytest.raises(CheckpointError, match="|".join([*facts, "contradict"])):
        training_state.read(path, begin())


def test_the_same_counters_made_right_are_read(path):
    write_changed(path, facts={"history": [record()], "epoch": 2, "best_epoch": 1})
    training_state.read(path, state := begin())
    assert (state.epoch, state.best_epoch, state.history[0].seconds) == (2, 1, 0.5)


def test_a_random_state_torch_refuses_is_refused_before_anything_changes(path):
    write_changed(path, tensors={"random/cpu": torch.zeros_like(torch.get_rng_state())})
    before, random = weights((state := begin(model_seed=1)).model), torch.get_rng_state()
    with pytest.raises(CheckpointError, match=r"holds a random state torch refuses \("):
        training_state.read(path, state)
    assert all(torch.equal(before[n], t) for n, t in state.model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())


def test_a_gpu_s_random_state_travels_too(monkeypatch):
    device, put = torch.device("cuda", 1), []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda d: torch.tensor([d.index]))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda t, d: put.append((t.item(), d)))
    states = random_states(device)
    assert states.keys() == {"random/cpu", "random/cuda"}
    expected = torch.rand(3)
    set_random_states(states, device)
    assert torch.equal(torch.rand(3), expected)
    assert put == [(1, device)]


def test_finite_checks_the_weights_and_the_sums():
    state = begin()
    assert state.finite()
    state.totals[0] = float("nan")
    assert not state.finite()
    state = begin()
    state.model.head.bias.data[2] = float("inf")
    assert not state.finite()
