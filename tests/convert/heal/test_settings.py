"""The settings of a healing."""

from __future__ import annotations

import pytest

from suffice.convert.heal import Healing
from suffice.convert.heal.settings import MAX_STEPS
from suffice.errors import ConfigError


def test_the_budget_is_divided_between_the_stages():
    by_steps = Healing(minutes=None, steps=100)
    assert (by_steps.first().steps, by_steps.second().steps) == (25, 75)
    assert by_steps.first().max_minutes is by_steps.second().max_minutes is None
    assert (by_steps.first().learning_rate, by_steps.second().learning_rate) == (3e-3, 5e-4)
    by_time = Healing(minutes=8.0)
    assert (by_time.first().max_minutes, by_time.second().max_minutes) == (2.0, 6.0)
    assert by_time.first().steps == by_time.second().steps == MAX_STEPS
    control = by_time.control(70)
    assert (control.steps, control.max_minutes, control.learning_rate) == (70, None, 5e-4)
    assert control.warmup == 7
    assert Healing(minutes=None, steps=10_000, warmup=20).second().warmup == 20
    alone = Healing(minutes=8.0, regression=0.0)
    assert (alone.regression_steps, alone.second().max_minutes) == (0, 8.0)
    few = Healing(minutes=3.0, steps=1)
    assert (few.regression_steps, few.second().steps, few.second().max_minutes) == (0, 1, 3.0)


WRONG = {
    "minutes": (0.0, r"minutes=0\.0; give a number above 0"),
    "steps": (0, "steps=0; give an integer >= 1"),
    "regression": (1.0, r"regression=1\.0; give a share from 0 to below 1"),
    "kl": (1.5, r"kl=1\.5; give a weight from 0 to 1"),
    "warmup": (-1, "warmup=-1; give an integer >= 0"),
    "rank": (0, "rank=0; give an integer >= 1"),
    "alpha": (-2.0, r"alpha=-2\.0; give a number above 0"),
    "lora": (3, "lora=3 is not True or False"),
}


@pytest.mark.parametrize("name", WRONG)
def test_illegal_settings_are_refused(name):
    value, said = WRONG[name]
    with pytest.raises(ConfigError, match=said):
        Healing(**{name: value})


def test_some_budget_is_due():
    with pytest.raises(ConfigError, match="minutes=None.*steps=None"):
        Healing(minutes=None)
