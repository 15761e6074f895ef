"""The comparison that would decide, and what it costs."""

from __future__ import annotations

import math

import pytest
import torch

from suffice.data import load
from suffice.errors import DataError
from suffice.measure.advise import Composition, Request, base_of
from suffice.measure.advise.request import candidates
from suffice.measure.advise.timing import (
    ROWS,
    SEEDS,
    TOKENS,
    DecidingComparison,
    TrainingStepTimer,
    minutes,
    trial,
)
from suffice.models.composition import STANDARD
from suffice.recipes import RECIPES, recipe

DIGITS = base_of(Request(task="image", model="digits_vit"))


@pytest.mark.parametrize("name", ["mqa", "efficient+kv:1", "standard+window:8"])
def test_a_comparison_is_of_the_whole_composition(name):
    command = f"suffice compare --recipe digits_vit --mechanisms standard,{name}"
    assert trial(Composition.parse(name), DIGITS).command == command


@pytest.mark.parametrize("name", ["standard", "standard+memory:8", "mqa+weights:4"])
def test_no_training_decides_about_a_trained_model(name):
    assert trial(Composition.parse(name), DIGITS) is None


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
    chosen = trial(Composition.parse("efficient"), base)
    model = chosen.recipe.model
    assert (model.length, chosen.num_heads) == (base.length, base.num_heads)
    assert model.d_model == base.config.d_model
    assert chosen.recipe.specs("efficient", base.num_heads)
    if request_.task == "lm":
        sizes = ("depth", "mlp_width")
        assert all(getattr(model, name) == getattr(base.config, name) for name in sizes)
        assert (f"--heads {base.num_heads} " in chosen.command) is (base.num_heads != 4)
    assert (chosen.steps is None) is ("--data" in chosen.command)


@pytest.mark.parametrize("task", ["lm", "classify", "image"])
def test_every_trained_candidate_can_be_compared(task):
    base = base_of(Request(task=task, length=1024 if task == "lm" else None))
    chosen = [(one.name, trial(one.composition, base)) for one in candidates(base)[0]]
    offered = {name: one.recipe.specs(name, base.num_heads) for name, one in chosen if one}
    assert offered
    assert all(offered.values())


def test_minutes_are_those_of_all_trainings():
    chosen = trial(Composition.parse("mqa"), DIGITS)
    steps = 20 * math.ceil(1_078 / 64)
    times = {STANDARD: 0.02, "mqa": 0.01}
    spent = minutes(chosen, lambda _, name, heads: times[name] if heads == 4 else 9.0)
    assert spent == pytest.approx(SEEDS * steps * 0.03 / 60)
    fields = {"recipe": chosen.recipe, "num_heads": 4, "name": "x", "command": "y"}
    for number, words in (
        (0.2, "a minute"),
        (1.7, "a minute"),
        (9.0, "9 minutes"),
        (60.0 * 24 * 9, "9 days"),
        (60.0 * 24 * 1234, "1,200 days"),
    ):
        sentence = DecidingComparison(**fields, minutes=number).sentence
        assert sentence == f"`y` (10 trainings, about {words} on this machine)"
    assert "of unknown length" in DecidingComparison(**fields).sentence


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("digits_vit", "paper"),
        ("imdb", "paper"),
        ("lm_small", "paper"),
        ("translation_es", "small"),
    ],
)
def test_training_steps_of_every_kind_are_timed(name, scale):
    before, chosen = torch.random.get_rng_state(), recipe(name, scale=scale)
    assert 0.0 < TrainingStepTimer(torch.device("cpu"))(chosen, "mqa", 4) < 10.0
    assert torch.equal(before, torch.random.get_rng_state())


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
