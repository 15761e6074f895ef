"""What is said before training and after two seeds, and the last screen."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.stats import f, norm, t

from suffice.comparison import judge, notes, sentence
from suffice.comparison.answers import Answers
from suffice.comparison.console import data_summary, print_report, seeds_needed
from suffice.comparison.plan import Plan
from suffice.comparison.resolution import EVIDENCE, after_two_seeds, before_training
from suffice.comparison.sufficiency import UNLEARNED, level
from suffice.data import Dataset, Split, load
from suffice.data.survey import survey
from suffice.train.recipes import recipe
from suffice.utils.files import packaged
from tests.comparison.synthetic import from_accuracies, make_cell, make_results

SURE = [0.970, 0.971, 0.969, 0.970, 0.970]
WILD = [0.995, 0.930, 0.990, 0.940, 0.980]


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
    line = "words: median 6, most 100; 4 are read, {} of the texts are cut"
    assert f"{line.format('67%')}: --set length=16" in data_summary(facts, plan())
    assert line.format("20%") in data_summary(replace(facts, cut=0.2), plan())


def test_what_is_said_before_training_is_six_lines_that_end_with_what_they_decide(dataset):
    lines = data_summary(survey(load("digits")), plan())
    assert lines[1:3] == [
        "rows: 1,078 train, 180 validation, 539 test; 10 classes of 104 to 110",
        'duplicates: 0 within splits, 0 across; always "3" 10.2%, random 10.0%',
    ]
    crowded = replace(survey(dataset), notes=("3 rows are empty", "4 rows " * 20))
    for seeds in (2, 5):
        lines = data_summary(crowded, plan(seeds))
        assert len(lines) <= 6
        assert max(map(len, lines)) <= 80
        decides = " ".join(lines[-2:])
        assert " resolve " in decides
        assert ("2 seeds give no verdict; 5 can: 5 seeds" in decides) is (seeds == 2)


def test_a_class_without_rows_is_named_instead_of_the_counts(dataset):
    lines = data_summary(survey(dataset), plan())
    assert lines[1] == "rows: 9 train, 3 validation, 4 test; low has none in test"


def test_a_class_that_is_most_of_the_rows_suggests_another_metric(dataset):
    facts = replace(survey(dataset), majority=0.88, majority_class="no", chance=0.5)
    assert data_summary(facts, plan())[2].endswith('always "no" 88.0%: see --metric balanced')
    balanced = data_summary(facts, replace(plan(), metric="balanced"))
    assert balanced[2].endswith('always "no" 88.0%, random 50.0%')


def of_rows(dataset, rows):
    return survey(replace(dataset, test=split([0, 1, 2, 2] * (rows // 4))))


OWN = replace(recipe("digits_vit"), name="of nobody")  # nothing was published of it


def test_the_range_is_of_models_that_are_nearly_perfect_and_of_models_that_guess(dataset):
    """99% right: .99 * .01 of the rows differ; half right: a quarter, and seeds by twice that."""
    facts = replace(of_rows(dataset, 400), majority=0.25)
    seeds, rows, by = 7, 400, ("standard", "efficient", "mqa")
    low, high = before_training(facts, replace(plan(seeds, mechanisms=by), recipe=OWN))
    assert low == pytest.approx(t.isf(0.025, rows - 1) * np.sqrt(0.0099 / rows / seeds))
    last = t.isf(0.05 / 2 / 2, seeds - 1)  # of the first of two candidates
    assert high == pytest.approx(2 * last * np.sqrt(0.25 / rows / seeds))
    folds = replace(facts, tested=4000)  # all seeds together test each row once
    asked = replace(plan(seeds), recipe=replace(recipe("table"), name="mine"), folds=seeds)
    low, high = before_training(folds, asked)
    overlap = 1 + 1 / 4 / (seeds - 1)
    assert low == pytest.approx(t.isf(0.025, 3999) * np.sqrt(0.0099 * overlap / 4000))
    assert high == pytest.approx(2 * t.isf(0.025, seeds - 1) * np.sqrt(0.25 * overlap / 4000))


def test_a_published_recipe_has_the_range_of_its_own_seeds(dataset):
    """As many as 4 seeds scatter by chance about what the file of evidence knows."""
    (known,) = (one for one in packaged(*EVIDENCE)["spreads"] if one["recipe"] == "imdb")
    asked = replace(plan(seeds=4), recipe=recipe("imdb"))
    low, high = before_training(of_rows(dataset, 400), asked)
    of_chance = [known["variance"] * f.ppf(share, 3, known["free"]) / 4 for share in (0.05, 0.95)]
    assert (low, high) == pytest.approx(t.isf(0.025, 3) * np.sqrt(of_chance))
    trained_longer = replace(asked.recipe, training=replace(asked.recipe.training, epochs=3))
    again = before_training(of_rows(dataset, 400), replace(asked, recipe=trained_longer))
    assert again != (low, high)


def test_no_number_of_seeds_is_ever_said_to_be_too_few_and_the_margin_is_placed(dataset):
    facts = of_rows(dataset, 400)
    low, high = before_training(facts, replace(plan(), recipe=OWN))

    def line(margin):
        return data_summary(facts, replace(plan(margin=margin), recipe=OWN))[-1]

    begin = "5 seeds on 400 test rows resolve 0.44–6.2 points"
    assert line(0.01) == f"{begin}; 1.0 lies in between"
    assert line(0.1) == f"{begin}; 10.0 is enough"
    assert low < 0.01 < high < 0.1
    least, most = ((end / 0.001) ** 2 for end in (low, high))
    ends = f"{np.ceil(least):.0f}–{100 * np.ceil(most / 100):,.0f}"
    assert line(0.001) == f"{begin}; 0.1 takes {ends}x the rows"


def test_looks_and_candidates_widen_the_range(dataset):
    facts, asked = of_rows(dataset, 2000), replace(plan(seeds=30), recipe=OWN)
    alone = before_training(facts, asked)
    looked = before_training(facts, replace(asked, auto=True))
    assert looked[0] > alone[0]
    assert looked[1] / alone[1] == pytest.approx(
        t.isf(level(0.05, 30, 30) / 2, 29) / t.isf(0.025, 29)
    )


def test_another_metric_and_languages_say_nothing_of_rows(dataset):
    lines = data_summary(survey(dataset), replace(plan(seeds=2), metric="macro-f1"))
    assert lines[-1] == "2 seeds give no verdict; 5 can"
    facts = survey(load("copy"))
    assert (facts.majority, facts.classes) == (None, ())
    assert not any("resolve" in line for line in data_summary(facts, plan()))


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
    assert line.startswith("after two seeds: 5 seeds resolve 0.75–11.0 points; 1.0 lies")
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


def screen(results, **options):
    console = Console(file=StringIO(), width=80)
    print_report(results, judge(results), console, **options)
    return console.file.getvalue().splitlines()


MANY = [f"mechanism_{number}" for number in range(8)]


@pytest.mark.parametrize(
    "accuracies",
    [
        {
            f"{name}@{heads}": [v - 0.002 * (name in MANY) for v in SURE]
            for heads in (1, 4)
            for name in ("standard", *MANY)
        },
        {f"{name}@{heads}": WILD for heads in (1, 2, 4) for name in ("standard", *MANY)},
        {"standard": [0.1] * 5, "efficient": [0.1] * 5},
    ],
    ids=["suffices", "undecided", "unlearned"],
)
def test_the_last_screen_has_24_lines_of_80_columns(accuracies, tmp_path):
    flops = {name: 1000 - place for place, name in enumerate(accuracies)}
    results = from_accuracies(accuracies, flops=flops, majority=0.1)
    verdict = judge(results)
    for line in screen(results):
        assert "in the report" not in line, "there is none without a folder"
    lines = screen(results, folder=tmp_path)
    assert len(lines) <= 24
    assert max(map(len, lines[:-1])) <= 80
    text = " ".join(" ".join(lines).split())
    assert text.count(sentence(verdict, results)) == 1
    for note in notes(verdict, results):
        assert text.count(note) <= 1
    told = [line for line in lines if line.startswith("- ") and "more notes" not in line]
    assert 1 <= len(told) <= 3
    more = len(notes(verdict, results)) - len(told)
    assert (f"- more notes in the report: {more}" in lines) is (more > 0)
    rows = [line for line in lines if line.endswith("x") and line[0] in "sme"]
    left_out = len(results.pairs()) - len(rows)
    assert (f"and {left_out} more in the report" in text) is (left_out > 0)
    assert lines[-1] == f"report: {tmp_path}/report.html"
