from __future__ import annotations

import math

import pytest

from suffice.errors import ConfigError
from suffice.train.language import LMTraining

SIZES = {"steps": 100, "batch_size": 4, "length": 8, "learning_rate": 1.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps=0; give an integer >= 1"),
        ({"batch_size": 0}, "batch_size=0; give an integer"),
        ({"evaluation_batches": 0}, "evaluation_batches=0"),
        ({"clip": 0.0}, r"clip=0\.0; give a number above 0"),
        ({"max_minutes": -1.0}, r"max_minutes=-1\.0"),
        ({"warmup": 100}, "warmup=100; give 0 to 99 steps"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1; give a number >= 0"),
        ({"min_learning_rate": 2.0}, r"min_learning_rate=2\.0; give 0 to learning_rate=1\.0"),
        ({"betas": (0.9, 1.0)}, "give two numbers >= 0 and below 1"),
        ({"betas": (0.9,)}, "betas="),
        ({"accumulate": 5}, "accumulate=5 micro-batches of batch_size=4 rows"),
        ({"steps": "9"}, "steps='9' is not a whole number"),
        ({"dtype": "float16"}, "unknown dtype 'float16'"),
        ({"documents": "seperate"}, "did you mean 'separate'"),
    ],
)
def test_illegal_settings_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        LMTraining(**(SIZES | changes))


def test_the_rate_rises_and_decays_to_its_minimum():
    training = LMTraining(**SIZES, min_learning_rate=0.1, warmup=10)
    rates = [training.rate(step) for step in range(100)]
    assert rates[:10] == pytest.approx([(n + 1) / 10 for n in range(10)])
    expected = [0.1 + 0.45 * (1 + math.cos(math.pi * n / 90)) for n in range(90)]
    assert rates[10:] == pytest.approx(expected)
    assert [training.rate(step, 0.5) for step in (9, 10, 60)] == [rates[9], rates[50], rates[60]]
    assert training.rate(20, 1.0) == pytest.approx(0.1)
