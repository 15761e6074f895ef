"""The comparison that would decide, and what it costs."""

from __future__ import annotations

import math

import pytest
import torch

from suffice.advise import Composition, Request, base_of
from suffice.advise.comparison import (
    LANGUAGE,
    ROWS,
    SEEDS,
    TOKENS,
    Stepper,
    Trial,
    missing,
    scope_of,
    setting,
    timed,
    trial,
)
from suffice.advise.evidence import Scope
from suffice.data import load
from suffice.errors import DataError
from suffice.recipes import RECIPES, recipe

DIGITS = base_of(Request(task="image", model="digits_vit"))
ASKED = scope_of(recipe("digits_vit"))


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [
        ("mqa", "mqa"),
        ("efficient+kv:1", "efficient+kv:1"),
        ("standard+window:8", "standard+window:8"),
    ],
)
def test_a_comparison_is_of_the_whole_composition(name, mechanism):
    command = f"suffice compare --recipe digits_vit --mechanisms standard,{mechanism}"
    assert trial(Composition.parse(name), DIGITS, ASKED).command == command
    assert missing(Composition.parse(name), DIGITS, ASKED) == f"none: run `{command}`"


def test_what_is_done_after_training_is_left_out_and_told():
    packed = Composition.parse("standard+memory:8+weights:4")
    assert trial(packed, DIGITS, ASKED) is None
    assert missing(packed, DIGITS, ASKED).startswith("none: `suffice quantise DIR --bits 4`")
    found = trial(Composition.parse("mqa+weights:4"), DIGITS, ASKED)
    assert found.command.endswith(" standard,mqa")
    assert found.sentence.endswith("; `suffice quantise DIR --bits 4` tells what the bits lose")


@pytest.mark.parametrize(
    "request_",
    [
        Request(task="lm", length=1024),
        Request(task="lm", model="nanogpt_char_cpu", length=64),
        Request(task="classify", model="womens_clothing", length=48),
        Request(task="image", model="mnist_v2"),
        Request(task="translate", length=12),
    ],
)
def test_a_proposed_comparison_is_near_what_is_asked(request_):
    base = base_of(request_)
    name = LANGUAGE if request_.task == "lm" else base.name
    parameters = 15_000_000 if base.name == "15m" else scope_of(recipe(name)).parameters
    asked = Scope(tokens=base.length, parameters=parameters)
    chosen = setting(base, asked)
    assert scope_of(chosen.recipe).near(asked)
    assert chosen.steps > 0


def test_a_window_keeps_its_share_of_the_input():
    base = base_of(Request(task="lm", length=1024))
    asked = Scope(tokens=1024, parameters=15_000_000)
    found = trial(Composition.parse("standard+window:256+sinks:4"), base, asked)
    assert "--set length=256 --set d_model=" in found.command
    assert found.command.endswith("standard,standard+window:64")


def test_minutes_are_those_of_all_trainings():
    found = timed(trial(Composition.parse("mqa"), DIGITS, ASKED), DIGITS, ASKED, lambda *_: 0.03)
    steps = 20 * math.ceil(1_078 / 64)
    assert found.minutes == pytest.approx(2 * SEEDS * steps * 0.03 / 60)
    assert "(10 trainings, about 1.7 minutes on this machine)" in found.sentence
    long = Trial(name="x", command="y", trainings=2, minutes=60.0 * 24 * 9)
    assert "about 9 days" in long.sentence
    assert "of unknown length" in Trial(name="x", command="y", trainings=2).sentence


@pytest.mark.parametrize("name", ["digits_vit", "imdb", "lm_small", "atlas_translation_es_300k"])
def test_training_steps_of_every_kind_are_timed(name):
    before = torch.random.get_rng_state()
    assert 0.0 < Stepper(torch.device("cpu"))(recipe(name), "mqa") < 10.0
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
