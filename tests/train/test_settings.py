from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from suffice.errors import ConfigError
from suffice.train import Training
from suffice.train.optimiser import schedule_factor
from suffice.train.settings import derive, generator

# settings

LEGAL = {"epochs": 3, "batch_size": 8, "learning_rate": 0.1}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("epochs", 2.0),
        ("epochs", True),
        ("batch_size", -1),
        ("patience", 0),
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("learning_rate", "0.1"),
        ("clip", 0.0),
        ("clip", float("inf")),
        ("warmup", 1.0),
        ("warmup", -0.1),
        ("label_smoothing", 1.0),
        ("weight_decay", -1.0),
        ("enough", 0.0),
        ("enough", 1.1),
        ("enough", "0.9"),
        ("betas", (0.9, 1.0)),
        ("betas", (0.9,)),
        ("betas", [0.9, 0.999]),
    ],
)
def test_an_illegal_number_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=rf"\b{name}="):
        Training(**{**LEGAL, name: value})


def test_every_illegal_number_is_named_at_once():
    with pytest.raises(ConfigError, match="epochs=0"):
        Training(epochs=0, batch_size=1, learning_rate=-1, weight_decay=-2, betas=(1.0, 0.0))


@pytest.mark.parametrize(
    ("name", "value"), [("schedule", "cosin"), ("augment", "flip"), ("dtype", "bf16")]
)
def test_an_unknown_name_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"'{value}'"):
        Training(**LEGAL, **{name: value})


def test_settings_are_frozen_and_legal_extremes_pass():
    training = Training(
        **LEGAL, warmup=0.0, label_smoothing=0, betas=(0.0, 0.0), clip=1e-9, patience=1, enough=1
    )
    with pytest.raises(dataclasses.FrozenInstanceError, match="epochs"):
        training.epochs = 4


# seeds


def test_streams_differ_in_purpose_seed_and_epoch_and_never_by_chance():
    keys = [(p, s, e) for p in ("order", "augment") for s in range(40) for e in range(40)]
    assert len({derive(*key) for key in keys}) == len(keys)
    assert derive("order", 0, 2**32) != derive("order", 0, 0)
    assert all(0 <= derive(*key) < 2**32 for key in keys)


def test_a_generator_is_a_pure_function_and_leaves_the_global_state_alone():
    before = torch.get_rng_state()
    first = torch.rand(3, generator=generator("order", 1, 2))
    assert torch.equal(first, torch.rand(3, generator=generator("order", 1, 2)))
    assert not torch.equal(first, torch.rand(3, generator=generator("order", 1, 3)))
    assert torch.equal(before, torch.get_rng_state())


# schedule


def test_constant_rises_linearly_and_stays():
    rates = [schedule_factor(s, total=10, warmup=0.3, schedule="constant") for s in range(10)]
    assert rates == [1 / 3, 2 / 3, 1.0] + [1.0] * 7


def test_cosine_without_warmup_starts_full_and_would_end_at_zero():
    rates = [schedule_factor(s, total=4, warmup=0.0, schedule="cosine") for s in range(5)]
    expected = [0.5 + 0.5 * math.cos(math.pi * s / 4) for s in range(5)]
    assert rates == pytest.approx(expected)
    assert rates[0] == 1.0
    assert rates[4] == 0.0


def test_cosine_begins_after_the_warmup():
    rates = [schedule_factor(s, total=6, warmup=1 / 3, schedule="cosine") for s in range(6)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.8535533906, 0.5, 0.1464466094])


def test_warmup_of_nearly_everything_never_divides_by_zero():
    assert [schedule_factor(s, total=2, warmup=0.99, schedule="cosine") for s in range(2)] == [
        0.5,
        1.0,
    ]
