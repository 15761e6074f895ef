"""What is said before training, and the table that fills up meanwhile."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from suffice.data import Dataset, Split, load
from suffice.data.survey import survey
from suffice.measure import judge, sentence
from suffice.measure.answers import Answers
from suffice.measure.console import MAX_CLASSES, LiveTable, data_summary, seeds_needed
from suffice.measure.plan import Plan
from suffice.measure.results import DataFacts, Results
from suffice.measure.sufficiency import UNLEARNED
from suffice.recipes import recipe
from tests.measure.synthetic import make_cell, make_results


def plan(seeds=5, margin=0.01, mechanisms=("standard", "efficient")):
    return Plan(
        recipe=recipe("digits_vit"),
        mechanisms=mechanisms,
        heads=(4,),
        seeds=seeds,
        baseline="standard",
        margin=margin,
    )


def split(labels, first=0):
    inputs = torch.arange(first, first + len(labels))[:, None].expand(-1, 4).contiguous()
    return Split(inputs, torch.tensor(labels))


@pytest.fixture
def dataset():
    return Dataset(
        name="mine",
        title="mine",
        source="",
        train=split([2] * 6 + [0, 1, 2]),
        validation=split([0, 1, 2], first=100),
        test=split([2, 2, 2, 1], first=200),
        num_classes=3,
        class_names=("low", "middle", "high"),
        lengths=torch.tensor([2, 3, 4, 5, 6, 7, 8, 9, 100]),
    )


def test_the_majority_and_chance_are_those_of_the_test_rows(dataset):
    facts = survey(dataset)
    assert (facts.majority, facts.majority_class) == (0.75, "high")
    assert facts.chance == pytest.approx(1 / 3)
    assert facts.counts["train"] == (1, 1, 7)
    assert dataset.majority == 0.75


def test_repeated_rows_are_counted_within_and_across_parts(dataset):
    train = split([0, 1, 2, 2])
    twice = Split(torch.cat([train.inputs, train.inputs[:1]]), torch.tensor([0, 1, 2, 2, 1]))
    facts = survey(replace(dataset, train=twice, test=split([0, 1], first=3)))
    assert facts.repeated == {"train": 1, "validation": 0, "test": 0}
    assert facts.overlap == {"validation": 0, "test": 1}


def test_lengths_are_held_against_what_is_read(dataset):
    facts = survey(dataset)
    assert (facts.read, facts.median, facts.longest) == (4, 6.0, 100)
    assert facts.cut == pytest.approx(6 / 9)
    assert any(
        "the last 4 are read, 67% are longer" in line for line in data_summary(facts, plan())
    )


def test_a_longer_text_is_proposed_than_is_read(dataset):
    facts = replace(survey(dataset), read=60, cut=0.4)
    assert "--set length=128 reads more of each text" in data_summary(facts, plan())


def test_a_few_seeds_are_told_to_be_too_few_before_training():
    facts = survey(load("digits"))
    lines = "\n".join(data_summary(facts, plan(seeds=2)))
    assert "2 seeds give no verdict; 5 can" in lines
    assert 'always "3": 10.2% of the test rows' in lines
    assert "a blind guess: 10.0%" in lines
    assert "--metric balanced" not in lines
    assert "one point of accuracy is 5.39 test rows; the margin of 1.0 is 5.39" in lines
    assert "no verdict" not in "\n".join(data_summary(facts, plan(seeds=5)))


def test_a_class_that_is_most_of_the_rows_suggests_another_metric(dataset):
    facts = replace(survey(dataset), majority=0.88, majority_class="no", chance=0.5)
    lines = data_summary(facts, plan())
    assert {'always "no": 88.0% of the test rows', "a blind guess: 50.0%"} <= set(lines)
    advice = [line for line in lines if "--metric balanced" in line]
    assert advice == [
        'accuracy mostly reflects the class "no"; --metric balanced counts every class alike'
    ]
    balanced = "\n".join(data_summary(facts, replace(plan(), metric="balanced")))
    assert "--metric balanced" not in balanced


def decidable(facts, **changes):
    """Return the line on what can be decided, and the figures in it."""
    asked = replace(plan(), **changes)
    line = next(one for one in data_summary(facts, asked) if " seeds and " in one)
    apart = re.search(r"(?:margin of about|down to about) ([0-9.]+)", line)
    seeds, rows = (re.search(f"about ([0-9,]+) {what}", line) for what in ("seeds", "test rows"))
    return (
        line,
        float(apart[1]),
        *(int(n[1].replace(",", "")) if n else None for n in (seeds, rows)),
    )


def of_rows(dataset, rows):
    return survey(replace(dataset, test=split([0, 1, 2, 2] * (rows // 4))))


def test_the_line_names_the_margin_that_the_rows_decide(dataset):
    # of a variance of 0.2 / 80 a tenth stays, 1.96 * 0.0158 = 3.1 points, at any number of seeds
    line, apart, seeds, rows = decidable(of_rows(dataset, 80))
    assert "no number of seeds is enough for 1.0 points" in line
    assert (seeds, apart > 3.1) == (None, True)
    assert f"(--margin {apart:g})" in line
    assert "can decide the margin of" in decidable(of_rows(dataset, 80), margin=apart / 100)[0]
    assert decidable(of_rows(dataset, rows))[1] <= 1.0
    assert decidable(of_rows(dataset, rows // 2))[1] > 1.0


def test_more_rows_need_fewer_seeds(dataset):
    few, more = (decidable(of_rows(dataset, rows), seeds=5)[2] for rows in (1000, 1500))
    assert 5 < more < few
    assert decidable(of_rows(dataset, 1000), seeds=few)[1] <= 1.0
    assert decidable(of_rows(dataset, 1000), seeds=few - 1)[1] > 1.0


@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_no_line_contradicts_the_next(dataset, seeds):
    line = decidable(of_rows(dataset, 400), seeds=seeds)[0]
    assert line == decidable(of_rows(dataset, 400), seeds=5)[0]


def test_several_candidates_and_looks_need_more_seeds(dataset):
    facts = of_rows(dataset, 2000)
    alone = decidable(facts, margin=0.008)[2]
    assert alone < decidable(facts, margin=0.008, mechanisms=("standard", "efficient", "mqa"))[2]
    apart = decidable(facts, seeds=30)[1]
    assert apart < decidable(facts, seeds=30, auto=True)[1]


def test_folds_test_all_rows(dataset):
    whole = replace(of_rows(dataset, 400), tested=4000)
    line, apart, *_ = decidable(whole, recipe=recipe("table"), folds=5)
    assert "5 seeds and 4,000 test rows" in line
    # 1.96 * sqrt(0.2 * (1 + 1 / 16) / 4000) = 1.43
    assert apart == 1.5


def test_another_metric_has_no_rows_of_a_point(dataset):
    lines = "\n".join(data_summary(survey(dataset), replace(plan(seeds=2), metric="macro-f1")))
    assert "point of accuracy" not in lines
    assert "2 seeds give no verdict" in lines


def test_languages_have_no_majority():
    facts = survey(load("copy"))
    assert (facts.majority, facts.classes) == (None, ())
    assert not any("point of accuracy" in line for line in data_summary(facts, plan()))


def test_two_seeds_give_a_rough_number():
    values = {("standard", 0): 0.5, ("standard", 1): 0.5, ("efficient", 0): 0.5}
    cells = [
        make_cell(mechanism, seed=seed, test_accuracy=accuracy)
        for (mechanism, seed), accuracy in {**values, ("efficient", 1): 0.51}.items()
    ]
    # differences of 0 and 1 point: sd 0.71 points; t(4) 2.78 * 0.71 / sqrt(5) = 0.88 < 1 <= 1.13
    assert seeds_needed(make_results(cells), plan()).startswith(
        "after two seeds: 5 seeds can decide the margin of 1.0 points, and margins down to about "
        "0.9"
    )
    assert seeds_needed(make_results(cells[:3]), plan()) is None
    third = make_cell("efficient", seed=2, test_accuracy=0.9)
    again = make_results([*cells, third, make_cell("standard", seed=2, test_accuracy=0.5)])
    assert seeds_needed(again, plan()) == seeds_needed(make_results(cells), plan())


def answered(right):
    right = np.asarray(right, dtype=float)
    label = np.zeros(len(right), dtype=np.int64)
    return Answers(
        label=label,
        predicted=1 - right.astype(np.int64),
        right=right,
        asked=np.ones(len(right)),
        loss=1.0 - right,
        confidence=np.full(len(right), 0.5),
    )


def test_rows_that_differ_whatever_the_seed_are_not_outweighed_by_seeds():
    """Two mechanisms that differ on the same rows at each seed: no seed narrows the interval."""
    ours, theirs = np.tile([1, 0, 1, 1], 25), np.tile([0, 1, 1, 1], 25)
    rows, cells = {}, []
    for seed in range(2):
        for name, right in (("standard", theirs), ("efficient", ours)):
            cells.append(make_cell(name, seed=seed, test_accuracy=0.75))
            rows[name, 4, seed] = answered(right)
    line = seeds_needed(make_results(cells, rows=rows), plan())
    # half of the rows differ by 1: 1.98 * sqrt(0.5 / 100) = 14 points, at any number of seeds
    assert line.startswith(
        "after two seeds: 5 seeds and 100 test rows can decide a margin of about 14.2 points "
        "(--margin 14.2); no number of seeds is enough for 1.0 points, it takes about "
        "20,000 test rows"
    )


def test_the_live_table_fills_up_at_80_columns():
    long = ("standard", "sliding_window")
    facts = DataFacts.of(load("digits"), survey(load("digits")))
    wanted = plan(seeds=6, mechanisms=long)
    live = LiveTable(wanted, Results.of(wanted, [], **facts.fields()))
    for seed in range(6):
        line = live.add(make_cell("standard", seed=seed, test_accuracy=0.8 + seed / 100))
    assert "standard heads 4 seed 5: test accuracy 85.0%" in line
    console = Console(width=80)
    with console.capture() as shown:
        console.print(live.table())
    lines = shown.get().splitlines()
    assert max(map(len, lines)) <= 80
    assert any("6/6" in one and "80.0 81.0 82.0 .. 85.0" in one for one in lines)
    assert any("sliding_window" in one and "0/6" in one for one in lines)
    assert any('always "' in one and "10.2" in one for one in lines)


def test_a_baseline_no_better_than_the_majority_has_learned_nothing():
    facts = replace(survey(load("digits")), majority=0.548, majority_class="5")

    def said(accuracy, rows):
        cells = tuple(
            make_cell(name, seed=seed, test_accuracy=accuracy)
            for name in ("standard", "efficient")
            for seed in range(3)
        )
        data = replace(facts, rows={**facts.rows, "test": rows})
        results = make_results(cells, majority=0.548, data=data)
        return sentence(judge(results), results)

    assert said(0.576, rows=500).startswith(f"{UNLEARNED}: standard (4 heads) has te")
    assert 'always "5" has 54.8%' in said(0.50, rows=5000)
    assert not said(0.576, rows=5000).startswith(UNLEARNED)  # 0.7 points: four standard errors


def test_notes_of_the_data_are_lines(dataset):
    facts = replace(survey(dataset), notes=("3 rows are empty",))
    assert "note: 3 rows are empty" in data_summary(facts, plan())


@pytest.mark.parametrize("count", [MAX_CLASSES, MAX_CLASSES + 1])
def test_many_classes_are_named_by_the_most_and_the_least_frequent(dataset, count):
    names = tuple(f"class{number}" for number in range(count))
    facts = replace(
        survey(dataset),
        classes=names,
        counts={part: tuple(range(1, count + 1)) for part in ("train", "validation", "test")},
    )
    lines = data_summary(facts, plan())
    whole = [line for line in lines if line.startswith("class")]
    named = [line for line in lines if f"from 1 (class0) to {count} (class{count - 1})" in line]
    assert (len(whole), len(named)) == ((count + 1, 0) if count == MAX_CLASSES else (0, 1))
