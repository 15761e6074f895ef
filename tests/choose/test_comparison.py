"""The comparison that would decide, and what it costs."""

from __future__ import annotations

import math

import pytest

from suffice.choose import Request, base_of
from suffice.choose.candidates import candidates
from suffice.choose.timing import (
    ROWS,
    SEEDS,
    TOKENS,
    _setting,
    command,
    minutes_of,
)
from suffice.data import load
from suffice.errors import DataError
from suffice.train.recipes import RECIPES, recipe

DIGITS = base_of(Request(task="image", model="digits_vit"))


@pytest.mark.parametrize(
    "request_",
    [
        Request(task="lm", length=1024),
        Request(task="lm", model="nanogpt_char_cpu", length=64),
        Request(task="classify", model="womens_clothing", length=48),
        Request(task="classify", model="table"),
        Request(task="image", model="mnist_v2", length=16),
        Request(task="translate", length=12),
    ],
)
def test_a_comparison_is_of_the_sizes_that_are_asked_for(request_):
    base = base_of(request_)
    (chosen, options), text = _setting(base), command(base, "standard", "efficient")
    model = chosen.model
    assert text == f"suffice compare {options} --mechanisms standard,efficient"
    assert (model.length, model.d_model) == (base.length, base.config.d_model)
    assert chosen.specs("efficient", base.num_heads)
    if request_.task == "lm":
        sizes = ("depth", "mlp_width")
        assert all(getattr(model, name) == getattr(base.config, name) for name in sizes)
        assert (f"--heads {base.num_heads} " in text) is (base.num_heads != 4)
    assert (minutes_of(base, lambda _: 1.0) is None) is ("--data" in text)


@pytest.mark.parametrize("task", ["lm", "classify", "image"])
def test_every_trained_candidate_can_be_compared(task):
    base = base_of(Request(task=task, length=1024 if task == "lm" else None))
    chosen, _ = _setting(base)
    names = [one.name for one in candidates(base)[0] if not one.composition.of_use]
    assert len(names) > 10
    assert all(chosen.specs(name, base.num_heads) for name in names)


def test_minutes_are_those_of_all_trainings():
    steps = 20 * math.ceil(1_078 / 64)
    timed = []
    spent = minutes_of(DIGITS, lambda rows: timed.append(rows) or 0.03 * rows / 64)
    assert (timed, spent) == ([64], pytest.approx(SEEDS * steps * 0.03 / 60))
    long = base_of(Request(task="classify", length=512))  # 8 of 64 rows are timed
    steps = 10 * math.ceil(22_500 / 64)
    spent = minutes_of(long, lambda rows: 0.5 if rows == 8 else math.nan)
    assert spent == pytest.approx(SEEDS * steps * 0.5 * 8 / 60)


@pytest.mark.parametrize("task", [*ROWS, "text"])
def test_rows_are_those_of_the_data(task):
    if task in ("amazon", "imdb", "translation_es"):
        pytest.skip("reading them takes seconds")
    chosen = next(one for one in map(recipe, RECIPES) if one.task == task)
    try:
        rows = len(load(task, **dict(chosen.task_options)).train)
    except DataError as error:
        pytest.skip(str(error))
    assert rows == ROWS.get(task, TOKENS // chosen.model.length)
