from __future__ import annotations

from dataclasses import replace

import pytest

from suffice.comparison.sentence import (
    longer,
    notes,
    sentence,
)
from suffice.comparison.verdict import judge

from .synthetic import from_accuracies, make_cell, make_results

SURE = [0.970, 0.971, 0.969, 0.970, 0.970]
NEAR = [0.968, 0.970, 0.967, 0.968, 0.967]


def test_the_command_that_trains_longer_trains_the_cells_of_a_resumed_run():
    first = "suffice compare --data a.csv --mechanisms a,c --heads=2 --seeds 2 --margin 2"
    command = f"{first} --out x\nsuffice compare --resume --out x --mechanisms a,b --seeds 3"
    cells = [make_cell(name, h, s, epochs=1) for name in "ab" for h in (4, 2) for s in range(3)]
    results = make_results(cells, command=command, baseline="a")
    shared = "suffice compare --data a.csv"
    assert (
        longer(results, 2)
        == f"{shared} --margin 2 --mechanisms a,b --heads 2,4 --seeds 3 --epochs 2"
    )
    auto = replace(results, command=command.replace("--seeds 2", "--seeds auto"), most_seeds=9)
    told = f"{shared} --seeds auto --margin 2 --mechanisms a,b --heads 2,4 --epochs 2"
    assert longer(auto, 2) == told


def test_a_margin_other_than_that_of_the_first_command_is_said():
    near = {"standard": [0.97, 0.971, 0.969], "a": [0.969, 0.971, 0.968]}
    for command, said in (("", True), (" --margin 3", True), (" --margin=2", False)):
        resumed = f"suffice compare --out x{command}\nsuffice compare --resume --margin 2"
        results = from_accuracies(near, command=resumed, margin=0.02)
        assert ("The margin was" in " ".join(notes(judge(results), results))) is said


@pytest.mark.parametrize(
    ("command", "longer_command"),
    [
        (
            "suffice compare --task mqar --cells 1/2 --epochs=4",
            "suffice compare --task mqar --epochs 2",
        ),
        (
            "suffice compare --data 'my reviews.csv' --out x",
            "suffice compare --data 'my reviews.csv' --epochs 2",
        ),
        (
            "suffice reproduce v2-imdb --run",
            "suffice compare --recipe digits_vit --scale small --mechanisms standard --epochs 2",
        ),
    ],
)
def test_the_command_that_trains_longer_is_a_legal_one(command, longer_command):
    results = make_results([make_cell(epochs=1)], command=command, scale="small")
    assert longer(results, 2) == longer_command


def test_what_is_undecided_at_equal_cost_is_named_before_what_clearly_fails():
    """A window that is computed as a mask has the FLOPs of the baseline: it is not cheaper."""
    wild = [0.995, 0.930, 0.990, 0.940, 0.980]
    values = {"standard": SURE, "masked": wild, "dearer": wild, "cheap": [v - 0.1 for v in SURE]}

    def said(flops):
        results = from_accuracies(values, flops=dict(zip(values, flops, strict=True)))
        verdict = judge(results)
        assert (verdict.outcome, verdict.code) == ("baseline", 10)
        return sentence(verdict, results)

    text = said((1000, 1000, 2000, 800))
    assert "masked (1 head)" in text
    assert "would decide it" in text
    assert "dearer" not in text
    assert "cheap (1 head)" not in text
    assert "the nearest, cheap (1 head)" in said((1000, 1001, 2000, 800))
