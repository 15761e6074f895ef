from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from suffice.comparison import judge, verdict_record
from suffice.comparison.cost_to_target import (
    costs_to_loss,
    effort_record,
    epochs_to,
    mean_cost,
    ratio_to,
)
from suffice.comparison.report.tables import Tables
from suffice.data.survey import Survey

from .synthetic import make_cell, make_results


def epochs(losses, seconds):
    numbers = dict.fromkeys(("train_loss", "train_accuracy", "validation_accuracy"), 0.5)
    return tuple(
        {"epoch": n, **numbers, "validation_loss": loss, "seconds": seconds}
        for n, loss in enumerate(losses, start=1)
    )


def compared(fast, *, seeds=3):
    """Return a baseline that ends at loss 1.0 after 4 epochs of 2 s, and one of 1 s an epoch."""
    cells = []
    for seed in range(seeds):
        for name, losses, pace in (("standard", (4, 3, 2, 1), 2.0), ("efficient", fast[seed], 1.0)):
            cell = make_cell(name, 4, seed, test_accuracy=0.9 + seed / 1000)
            cell = replace(cell, epochs=epochs(losses, pace), best_epoch=len(losses))
            cells.append(cell)
    return make_results(cells)


def effort_ratio(results, measure):
    ours, base = (costs_to_loss(results, name, 4)[measure] for name in ("efficient", "standard"))
    return ratio_to(ours, base)


EARLY = [(4, 1, 1, 1), (4, 2, 1, 1), (4, 1, 1, 1)]  # at loss 1 after 2, 3 and 2 of 4 epochs


def test_the_ratio_is_the_geometric_mean_over_seeds_with_its_interval():
    ratio = effort_ratio(compared(EARLY), "seconds")
    each = [math.log(n * 1.0 / 8.0) for n in (2, 3, 2)]
    mean = sum(each) / 3
    assert ratio.mean == pytest.approx(math.exp(mean))
    sd = math.sqrt(sum((one - mean) ** 2 for one in each) / 2)
    half = 4.302653 * sd / math.sqrt(3)
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(mean - half), math.exp(mean + half)))


def test_seeds_that_do_not_reach_the_loss_leave_no_interval():
    results = compared([*EARLY[:2], (4, 3, 2, 1.5)])
    ratio = effort_ratio(results, "epochs")
    assert (ratio.n, ratio.low) == (2, None)
    assert mean_cost([2.0, 3.0, None]).low is None
    assert mean_cost([None, None]) is None
    assert ratio_to({0: None}, {0: 1.0}) is None
    _, line = Tables(results, judge(results)).costs_to_target().lines
    assert "(2 of 3)" in line.cells[3]


def test_cost_stands_beside_quality_at_equal_epochs():
    results = compared(EARLY)
    sheet = Tables(results, judge(results)).costs_to_target()
    baseline, line = sheet.lines
    assert "no readable RAPL counter" in sheet.caption
    assert line.cells[2] == "0.00 [0.00, 0.00]"
    assert line.cells[3].startswith("2.3 [")
    assert line.cells[4].startswith("0.29x [")
    assert baseline.cells[3:5] == ("4.0 [4.0, 4.0]", "8.00 s")


def test_costs_of_a_training_with_several_seeds_and_heads():
    """The target is the baseline's with as many heads and the same seed, else its median."""
    cells = []
    for heads, seed, losses in ((1, 0, (9, 8)), (4, 0, (3, 1)), (4, 1, (4, 2)), (4, 2, (6, 5))):
        cells.append(replace(make_cell("standard", heads, seed), epochs=epochs(losses, 2.0)))
    for seed in (0, 1, 7):
        cell = make_cell("efficient", 4, seed, flops=10)
        cells.append(replace(cell, epochs=epochs((5, 3, 1), 1.0), joules=30.0 + seed))
    cells = [replace(cell, best_epoch=2) for cell in cells]
    results = replace(make_results(cells), data=Survey(rows={"train": 100, "test": 7}, counts={}))
    costs = {name: list(c.values()) for name, c in costs_to_loss(results, "efficient", 4).items()}
    assert costs["epochs"] == [3.0, 2.5, 2.5]  # to 1, 2 and the median 2
    assert costs["seconds"] == [3.0, 2.5, 2.5]
    assert costs["flops"] == [3 * 10 * 100 * n for n in costs["epochs"]]
    assert costs["joules"] == pytest.approx([30.0, 31 * 2.5 / 3, 37 * 2.5 / 3])
    assert costs_to_loss(results, "standard", 1)["epochs"] == {0: 2.0}
    ratio = effort_ratio(results, "epochs")
    assert (ratio.n, ratio.mean) == (2, pytest.approx(math.sqrt(3.0 / 2 * 2.5 / 2)))
    unknown = costs_to_loss(make_results(cells), "efficient", 4)["flops"]
    assert unknown == dict.fromkeys((0, 1, 7))


def test_when_a_loss_is_reached():
    assert epochs_to([2.0, 1.0, 1.0], 1.0) == 2.0  # exactly, and at its first
    assert epochs_to([1.0, 1.0], 1.0) == 1.0
    assert epochs_to([3.0, 4.0, 1.0], 2.0) == pytest.approx(2 + 2 / 3)
    assert epochs_to([2.0], math.nan) is None


def test_intervals_of_costs_need_3_seeds_and_stay_above_0():
    assert mean_cost([1.0, 2.0]).low is None
    wide = mean_cost([1.0, 1.0, 9.0])
    assert 0.0 < wide.low < wide.mean
    assert wide.high > 9.0
    twice = {0: 2.0, 1: 2.0, 2: 2.0}
    assert ratio_to(twice, {0: 1.0, 1: 1.0, 9: 1.0}).low is None
    assert ratio_to(twice, {0: 1.0, 1: 1.0, 2: 1.0}).low == pytest.approx(2.0)
    assert ratio_to({0: 0.0, 1: 2.0}, {0: 1.0, 1: 1.0}).mean == 2.0  # a cost of 0 has no ratio


def test_the_record_of_a_verdict_has_the_cost():
    results = compared(EARLY)
    record = json.loads(json.dumps(verdict_record(judge(results), results)))["effort"]
    assert record == effort_record(results)
    (efficient,) = (one for one in record if one["mechanism"] == "efficient")
    assert (efficient["reached"], efficient["seeds"]) == (3, 3)
    assert efficient["epochs"]["mean"] == pytest.approx(12 ** (1 / 3))
    assert efficient["seconds_ratio"]["low"] < 0.29 < efficient["seconds_ratio"]["high"]
    assert efficient["joules"] is None
