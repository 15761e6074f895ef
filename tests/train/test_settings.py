from __future__ import annotations

import dataclasses

import pytest

from suffice.errors import ConfigError
from suffice.train import Training

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
    with pytest.raises(ConfigError, match=rf"^{name}=.*; give "):
        Training(**{**LEGAL, name: value})


def test_every_illegal_number_is_told_at_once():
    with pytest.raises(ConfigError, match=r"epochs=0.*learning_rate=-1.*weight_decay=-2.*betas"):
        Training(epochs=0, batch_size=1, learning_rate=-1, weight_decay=-2, betas=(1.0, 0.0))


def test_an_unknown_schedule_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"unknown schedule 'cosin'; did you mean 'cosine'\?"):
        Training(**LEGAL, schedule="cosin")


def test_an_unknown_augmentation_is_refused_with_the_legal_names():
    with pytest.raises(
        ConfigError, match=r"unknown augmentation 'flip'.*: flip_turn_zoom, shift\."
    ):
        Training(**LEGAL, augment="flip")


def test_settings_are_frozen_and_legal_extremes_pass():
    training = Training(
        **LEGAL, warmup=0.0, label_smoothing=0, betas=(0.0, 0.0), clip=1e-9, patience=1, enough=1
    )
    with pytest.raises(dataclasses.FrozenInstanceError, match="epochs"):
        training.epochs = 4
