"""Every argument and option of every verb meets the same bad values: exit code 2 and a sentence."""

from __future__ import annotations

import os

import pytest

from suffice.cli import SIBLINGS, VERBS
from tests.cli.bad_values import models, place, wrong_answers
from tests.cli.introspect import parameters

__all__ = ["models", "place"]

SETS = ("--set", "steps=2", "--set", "batch_size=2", "--set", "length=16", "--set", "d_model=16")
SETS += ("--set", "depth=1", "--set", "num_heads=2", "--set", "warmup=1")
BASE: dict[str, list[str]] = {
    "compare": ["--data", "rows.csv", "--mechanisms", "standard,linear", "--seeds", "1"]
    + ["--epochs", "1", "--set", "d_model=8", "--set", "depth=1", "--set", "length=8"]
    + ["--anyway", "--out", "new", "--quiet"],
    "verdict": ["RESULTS=scores.csv"],
    "predict": ["MODEL=classifier", "INPUTS=rows.csv"],
    "advise": ["--task", "lm", "--model", "15m", "--minutes", "0.001", "--quiet"],
    "train": ["--data", "text.txt", *SETS, "--out", "new", "--quiet"],
    "fits": ["MODEL=Qwen3 8B", "--length", "64", "--memory", "24GiB"],
    "evaluate": ["CHECKPOINT=m", "--data", "text.txt", "--limit", "2", "--quiet"],
    "generate": ["CHECKPOINT=m", "--tokens", "2", "--prompt", "a"],
    "bench": ["CHECKPOINT=m", "--tokens", "2", "--prompt", "2", "--rounds", "1"],
    "quantise": ["CHECKPOINT=m", "--calibration", "none", "--out", "new", "--quiet"],
    "convert": ["SOURCE=m", "--to", "mqa", "--calibration", "text.txt", "--out", "new", "--quiet"],
    "search": ["CHECKPOINT=m", "--budget", "state<=60%", "--options", "mqa", "--tokens", "300"]
    + ["--calibration", "text.txt", "--out", "new.json", "--quiet"],
    "heal": ["CHECKPOINT=m", "--teacher", "m", "--data", "text.txt", "--steps", "2"]
    + ["--out", "new", "--quiet"],
    "export": ["CHECKPOINT=m", "--format", "hf", "--out", "new", "--quiet"],
    "run": ["EXPORT=e", "--prompt", "a", "--tokens", "2"],
    "list": [],
    "show": ["MECHANISM=standard"],
    "doctor": [],
}
"""The words of a short command; an argument has its name before it."""
STEP = 9  # of the values that a parameter meets in every run


def test_every_verb_has_a_short_command():
    assert BASE.keys() == VERBS.keys() - SIBLINGS.keys()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes and devices")
@pytest.mark.parametrize("step", [STEP, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("verb", BASE)
def test_bad_values_are_refused_in_a_sentence(verb, step, suffice, place):
    """Each parameter meets a share of the values, the next one the next share; all at night."""
    values = [(p, number) for number, p in enumerate(parameters()) if p.verb == verb]
    assert wrong_answers(suffice, place, BASE[verb], values, step=step, legal=LEGAL) == []


SEEDS = ("-1", "huge", "negative", "64 bits")
LEGAL = {(f"{verb} --seed", name) for verb in ("generate", "run", "train") for name in SEEDS} | {
    ("evaluate --limit", "huge"),  # all that there are
    ("evaluate --limit", "64 bits"),
    *(
        (f"{verb} --prompt", "nothing") for verb in ("generate", "run")
    ),  # starts behind a line break
    ("predict --out", "file"),  # a table may end in .txt, and a file is replaced
}
