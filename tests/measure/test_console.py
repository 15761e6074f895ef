"""What is said before training, and the table that fills up meanwhile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.stats import f, norm, t

from suffice.data import Dataset, Split, load
from suffice.data.survey import survey
from suffice.measure import judge, sentence
from suffice.measure.answers import Answers
from suffice.measure.console import MAX_CLASSES, LiveTable, data_summary, seeds_needed
from suffice.measure.plan import Plan
from suffice.measure.published import read_published
from suffice.measure.resolution import after_two_seeds, before_training
from suffice.measure.results import DataFacts, Results
from suffice.measure.sequential import level
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
    assert 'baselines: majority class "3" 10.2%, random 10.0%' in lines
    assert "--metric balanced" not in lines
    assert "one point of accuracy is 5.39 test rows; the margin of 1.0 is 5.39" in lines
    assert "no verdict" not in "\n".join(data_summary(facts, plan(seeds=5)))


def test_a_class_that_is_most_of_the_rows_suggests_another_metric(dataset):
    facts = replace(survey(dataset), majority=0.88, majority_class="no", chance=0.5)
    lines = data_summary(facts, plan())
    assert 'baselines: majority class "no" 88.0%, random 50.0%' in lines
    advice = [line for line in lines if "--metric balanced" in line]
    assert advice == [
        'accuracy mostly reflects the class "no"; --metric balanced counts every class alike'
    ]
    balanced = "\n".join(data_summary(facts, replace(plan(), metric="balanced")))
    assert "--metric balanced" not in balanced


def of_rows(dataset, rows):
    return survey(replace(dataset, test=split([0, 1, 2, 2] * (rows // 4))))


OWN = replace(recipe("digits_vit"), name="of nobody")  # nothing was published of it


def test_the_range_is_of_models_that_are_nearly_perfect_and_of_models_that_guess(dataset):
    """99% right: .99 * .01 of the rows differ; half right: a quarter, and seeds by twice that."""
    facts = replace(of_rows(dataset, 400), majority=0.25)
    seeds, rows, by = 7, 400, ("standard", "efficient", "mqa")
    (low, high), _ = before_training(facts, replace(plan(seeds, mechanisms=by), recipe=OWN))
    assert low == pytest.approx(t.isf(0.025, rows - 1) * np.sqrt(0.0099 / rows / seeds))
    last = t.isf(0.05 / 2 / 2, seeds - 1)  # of the first of two candidates
    assert high == pytest.approx(2 * last * np.sqrt(0.25 / rows / seeds))
    folds = replace(facts, tested=4000)  # all seeds together test each row once
    asked = replace(plan(seeds), recipe=replace(recipe("table"), name="mine"), folds=seeds)
    (low, high), _ = before_training(folds, asked)
    overlap = 1 + 1 / 4 / (seeds - 1)
    assert low == pytest.approx(t.isf(0.025, 3999) * np.sqrt(0.0099 * overlap / 4000))
    assert high == pytest.approx(2 * t.isf(0.025, seeds - 1) * np.sqrt(0.25 * overlap / 4000))


def test_a_published_recipe_has_the_range_of_its_own_seeds():
    stored = read_published("v2-imdb").results
    variances = []
    for mechanism, heads in stored.pairs():
        if mechanism != "standard":
            ours, base = (stored.select(name, heads) for name in (mechanism, "standard"))
            gaps = [a.test_accuracy - b.test_accuracy for a, b in zip(ours, base, strict=True)]
            variances.append((np.var(gaps, ddof=1), len(gaps) - 1))
    free = sum(count for _, count in variances)
    pooled = sum(variance * count for variance, count in variances) / free
    asked = replace(plan(seeds=4), recipe=recipe("imdb"))
    (low, high), source = before_training(stored.data, asked)
    quantile = t.isf(0.025, 3)
    assert low == pytest.approx(quantile * np.sqrt(pooled * f.ppf(0.05, 3, free) / 4))
    assert high == pytest.approx(quantile * np.sqrt(pooled * f.ppf(0.95, 3, free) / 4))
    assert "published" in source


def test_no_number_of_seeds_is_ever_said_to_be_too_few_and_the_margin_is_placed(dataset):
    facts = of_rows(dataset, 400)
    (low, high), _ = before_training(facts, replace(plan(), recipe=OWN))

    def line(margin):
        return data_summary(facts, replace(plan(margin=margin), recipe=OWN))[-1]

    begin = "5 seeds and 400 test rows resolve a margin of 0.44 to 6.2 points"
    assert line(0.01).startswith(f"{begin} between equal mechanisms: 1.0 is within that range")
    assert "10.0 is enough" in line(0.1)
    assert low < 0.01 < high < 0.1
    least, most = ((end / 0.001) ** 2 for end in (low, high))
    ends = f"{np.ceil(least):.0f} to {100 * np.ceil(most / 100):,.0f}"
    assert f"0.1 takes about {ends} times as many rows" in line(0.001)
    for seeds in (1, 2):  # as with the number that gives a verdict
        assert data_summary(facts, replace(plan(seeds), recipe=OWN))[-1] == line(0.01)


def test_looks_and_candidates_widen_the_range(dataset):
    facts, asked = of_rows(dataset, 2000), replace(plan(seeds=30), recipe=OWN)
    alone = before_training(facts, asked)[0]
    looked = before_training(facts, replace(asked, auto=True))[0]
    assert looked[0] > alone[0]
    assert looked[1] / alone[1] == pytest.approx(
        t.isf(level(0.05, 30, 30) / 2, 29) / t.isf(0.025, 29)
    )


def test_another_metric_has_no_rows_of_a_point(dataset):
    lines = "\n".join(data_summary(survey(dataset), replace(plan(seeds=2), metric="macro-f1")))
    assert "point of accuracy" not in lines
    assert "2 seeds give no verdict" in lines


def test_languages_have_no_majority():
    facts = survey(load("copy"))
    assert (facts.majority, facts.classes) == (None, ())
    assert not any("point of accuracy" in line for line in data_summary(facts, plan()))


def test_two_seeds_give_a_range_by_the_quantiles_of_f():
    values = {
        "standard": (0.5, 0.5),
        "efficient": (0.5, 0.51),  # differences 0 and 1 point: variance 0.5
        "mqa": (0.53, 0.5),  # 3 and 0: 4.5
    }
    cells = [
        make_cell(mechanism, seed=seed, test_accuracy=of[seed])
        for seed in range(2)
        for mechanism, of in values.items()
    ]
    asked = plan(mechanisms=tuple(values))
    low, high = after_two_seeds(make_results(cells), asked)
    pooled = 2.5e-4
    first, last = t.isf(0.05 / 2 / 2, 4), t.isf(0.025, 4)
    assert low == pytest.approx(last * np.sqrt(pooled * f.ppf(0.05, 4, 2) / 5))
    assert high == pytest.approx(first * np.sqrt(pooled * f.ppf(0.95, 4, 2) / 5))
    line = seeds_needed(make_results(cells), asked)
    assert line.startswith("after two seeds: 5 seeds resolve a margin of 0.75 to 11.0 points")
    assert seeds_needed(make_results(cells[:3]), asked) is None
    third = [make_cell(name, seed=2, test_accuracy=0.1 * n) for n, name in enumerate(values)]
    assert seeds_needed(make_results([*cells, *third]), asked) == line


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
    low, high = after_two_seeds(make_results(cells, rows=rows), plan())
    # half of the rows differ by 1: 1.96 * sqrt(0.5 / 99) = 14 points, at any number of seeds
    assert high == pytest.approx(norm.isf(0.025) * np.sqrt(0.5 / 99))
    # less two standard errors of that variance, each 2 / sqrt(100) of it
    assert low == pytest.approx(np.sqrt(1 - 0.4) * high)


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
