"""Folds of a table: who tests which row, what an interval makes of it, and that a verdict holds."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from suffice.cli.compare import CompareOptions
from suffice.comparison import judge
from suffice.comparison.answers import Answers, joined, read_answers, spread, write_answers
from suffice.comparison.plan import read_plan
from suffice.comparison.sentence import notes, sentence
from suffice.comparison.two_way_interval import Sampling, estimate, estimate_folds
from suffice.data import load
from suffice.data.dataset import folds_of_keys
from suffice.errors import ConfigError
from tests.comparison.synthetic import make_cell, make_results

DESIGNS = pytest.mark.parametrize(("folds", "classes"), [(2, 2), (3, 5), (5, 3), (7, 2)])


def table_of(path, classes, rows=103, *, order=1):
    """Rows not divisible by the folds; every seventh repeats the one before, but for a mark."""
    texts = [f"word{n} tail{n % 9}" for n in range(rows)]
    texts = [f"{texts[n - 1]} !" if n % 7 == 6 else texts[n] for n in range(rows)]
    labels = [
        f"c{(n - (n % 7 == 6)) * n % classes if n % 7 != 6 else (n - 1) ** 2 % classes}"
        for n in range(rows)
    ]  # noqa: E501
    lines = [f"{text},{label}\n" for text, label in zip(texts, labels, strict=True)][::order]
    path.write_text("text,label\n" + "".join(lines))
    return str(path)


def parts_of(path, folds, fold, **options):
    """Return the texts of each part, cut by their classes, from the ids that a model reads."""
    dataset = load("table", path=path, folds=folds, fold=fold, **options)
    tested = [dataset.test_texts[row] for row in dataset.test_rows.tolist()]
    return dataset, tested


@DESIGNS
def test_every_row_is_tested_once_and_never_trained_on_where_it_is_tested(tmp_path, folds, classes):
    path = table_of(tmp_path / "a.csv", classes)
    every = [load("table", path=path, folds=folds, fold=fold) for fold in range(folds)]
    rows = torch.cat([dataset.test_rows for dataset in every])
    assert rows.sort().values.tolist() == list(range(103))
    for dataset in every:
        sizes = [len(part) for part in (dataset.train, dataset.validation, dataset.test)]
        assert sum(sizes) == 103
        assert min(sizes) > 0
        read = {
            name: {tuple(row.tolist()) for row in getattr(dataset, name).inputs}
            for name in ("train", "validation")
        }
        # a word that only other parts have is unknown, so compare what is known
        known = {tuple(row.tolist()) for row in dataset.train.inputs}
        assert not known & read["validation"] or dataset.vocabulary is None
        words = {dataset.vocabulary[i] for row in dataset.train.inputs for i in row.tolist()}
        tested = {dataset.test_texts[row].split()[0] for row in dataset.test_rows.tolist()}
        assert not tested & words


@DESIGNS
def test_folds_have_equal_shares_of_every_class(folds, classes):
    pairs = [(f"k{n}", f"c{n * n % 11 % classes}") for n in range(211)]
    place = folds_of_keys(pairs, folds)
    total = Counter(label for _, label in pairs)
    for fold in range(folds):
        counts = Counter(label for key, label in pairs if place[key] == fold)
        assert all(abs(counts[label] - total[label] / folds) < 1 for label in total)
        assert abs(sum(counts.values()) - 211 / folds) < 1


def test_folds_do_not_depend_on_the_order_of_rows_and_change_with_the_turn():
    pairs = [(f"k{n % 60}", f"c{n % 4 if n < 70 else n % 3}") for n in range(90)]
    place = folds_of_keys(pairs, 5)
    assert folds_of_keys(pairs[::-1], 5) == place
    assert folds_of_keys(sorted(pairs), 5) == place
    assert folds_of_keys(pairs, 5, turn=1) != place


@pytest.mark.parametrize("stratify", [True, False])
def test_texts_that_are_read_alike_are_in_one_fold(tmp_path, stratify):
    path = table_of(tmp_path / "a.csv", 3)
    dataset = load("table", path=path, folds=4, fold=1, stratify=stratify)
    tested = set(dataset.test_rows.tolist())
    pairs = [(n - 1, n) for n in range(6, 103, 7)]
    assert all((first in tested) == (second in tested) for first, second in pairs)
    assert 0 < len(tested) < 60
    short = load("table", path=path, folds=4, fold=1, length=1)  # all of a tail are read alike
    tails = {short.test_texts[row].split()[1] for row in short.test_rows.tolist()}
    assert len(short.test_rows) == sum(t.split()[1] in tails for t in short.test_texts)


def test_the_validation_rows_differ_between_folds(tmp_path):
    path = table_of(tmp_path / "a.csv", 2, rows=400)
    options = {"path": path, "folds": 5, "vocabulary_size": 9000}
    read = []
    for fold in range(2):
        dataset = load("table", **options, fold=fold)
        trained = {dataset.vocabulary[i] for row in dataset.train.inputs for i in row.tolist()}
        tested = {dataset.test_texts[row] for row in dataset.test_rows.tolist()}
        read.append({t for t in dataset.test_texts if t.split()[0] not in trained} - tested)
    assert len(read[0]) == pytest.approx(40, abs=3)
    assert len(read[0] & read[1]) < 20


def test_illegal_folds_are_refused(tmp_path):
    path = table_of(tmp_path / "a.csv", 2)
    for options, said in (
        ({"folds": 1}, "folds=1; give 2 to 20"),
        ({"folds": 5, "test": 0.2}, "every row is tested once; give one"),
        ({"folds": 2, "validation": 0.5}, "leave no rows to train on"),
    ):
        with pytest.raises(ConfigError, match=said):
            load("table", path=path, **options)


def plan_of(path, **options):
    return CompareOptions(data=path, **options).plan()


def test_a_small_table_has_as_many_folds_as_seeds(tmp_path, monkeypatch):
    path = table_of(tmp_path / "a.csv", 2)
    assert plan_of(path).folds == 5
    assert plan_of(path, seeds=(7, False)).folds == 7
    assert plan_of(path, seeds=(1, False)).folds == plan_of(path, seeds=(12, True)).folds == 5
    assert plan_of(path, folds=3).folds == 3
    for fixed in ({"folds": 0}, {"test": "0.2"}, {"test": path}, {"tune": 3}):
        assert plan_of(path, **fixed).folds is None
    for wrong, said in (({"tune": 3}, "tune=3"), ({"test": path}, "every row is tested once")):
        with pytest.raises(ConfigError, match=said):
            plan_of(path, folds=5, **wrong)
    with pytest.raises(ConfigError, match="folds=5: task digits has a test part"):
        CompareOptions(task="digits", folds=5).plan()
    monkeypatch.setattr("suffice.train.recipes.own_data.FOLDS_BELOW", 103)
    assert plan_of(path).folds is None


def test_a_comparison_of_other_folds_is_not_resumed(tmp_path):
    path = table_of(tmp_path / "a.csv", 2)
    plan = plan_of(path, seeds=(3, False))
    plan.claim(tmp_path / "run", resume=False)
    again = CompareOptions(seeds=(6, False)).plan(read_plan(tmp_path / "run"))
    assert (again.folds, again.seeds) == (3, 6)
    again.claim(tmp_path / "run", resume=True)
    with pytest.raises(ConfigError, match="folds 3 became 5|folds"):
        replace(plan, folds=5).claim(tmp_path / "run", resume=True)
    content = json.loads((tmp_path / "run" / "plan.json").read_text())
    del content["folds"]  # of an older version, which tested all seeds on the same rows
    (tmp_path / "run" / "plan.json").write_text(json.dumps(content))
    assert CompareOptions().plan(read_plan(tmp_path / "run")).folds is None


# the estimate


def folds_of(effects, rows, folds, rng, *, noise=1.0, turns=1):
    """Return scores [S, R]: the effect of each seed, and rows with an effect of their own."""
    own = noise * rng.normal(size=rows)
    table = np.full((folds * turns, rows), np.nan)
    for turn in range(turns):
        place = rng.permutation(rows) % folds
        for fold in range(folds):
            tested = place == fold
            rest = 0.5 * rng.normal(size=tested.sum())
            table[turn * folds + fold, tested] = effects[turn * folds + fold] + own[tested] + rest
    return table


def test_one_partition_has_the_variance_of_its_rows_and_of_its_folds():
    rng = np.random.default_rng(0)
    table = folds_of(rng.normal(size=5), 103, 5, rng)
    found = estimate_folds(table, 5)
    means = [line[~np.isnan(line)].mean() for line in table]
    sizes = [(~np.isnan(line)).sum() for line in table]
    spread_of = np.mean(
        [line[~np.isnan(line)].var(ddof=1) / m for line, m in zip(table, sizes, strict=True)]
    )
    assert found.mean == pytest.approx(np.mean(means))
    assert found.seed_variance == pytest.approx(1.5 * (np.var(means, ddof=1) - spread_of) / 5)
    assert found.row_variance == pytest.approx((1 + 1 / 16) * spread_of / 5, rel=0.02)
    assert (found.seeds, found.rows) == (5, 103)
    of_shares = estimate_folds(table, 5, Sampling(largest=1.0)).row_variance
    rows = np.nansum(table, axis=0)
    one_sided = (abs((rows * abs(rows)).sum()) + 1) / ((rows**2).sum() + 1)
    assert of_shares - found.row_variance == pytest.approx(4 * one_sided / 103**2)
    assert estimate_folds(table[::-1], 5).half_width(0.05) == pytest.approx(found.half_width(0.05))


def test_equal_scores_have_no_variance():
    table = folds_of(np.zeros(5), 50, 5, np.random.default_rng(0), noise=0.0)
    found = estimate_folds(np.where(np.isnan(table), np.nan, 0.1), 5)
    assert (float(found.mean), float(found.half_width(0.05))) == (pytest.approx(0.1), 0.0)


def test_further_partitions_remove_seeds_and_not_rows():
    rng = np.random.default_rng(1)
    variance = estimate_folds(folds_of(np.zeros(40), 2000, 5, rng, turns=8), 5).row_variance
    # own effects of variance 1 stay, rest of .25 falls by 8
    assert variance == pytest.approx((1 + 1 / 16) * (1 + 0.25 / 8) / 2000, rel=0.1)


@pytest.mark.parametrize("of", [estimate, lambda scores: estimate_folds(scores, 5)])
def test_one_seed_is_refused(of):
    with pytest.raises(ConfigError, match="seeds=1"):
        of([[0.5, 0.5]])


# answers and the verdict


def answers_of(right, row):
    right = np.asarray(right, dtype=float)
    label = np.asarray(row) % 2
    return Answers(
        label=label.astype(np.int64),
        predicted=np.where(right > 0, label, 1 - label).astype(np.int64),
        right=right,
        asked=np.ones(len(right)),
        loss=1.0 - right,
        confidence=np.full(len(right), 0.5),
        row=np.asarray(row, dtype=np.int64),
    )


def test_answers_keep_their_rows(tmp_path):
    answers = answers_of([1, 0, 1], [5, 0, 2])
    path = tmp_path / "answers" / "a-h1-s0.safetensors"
    write_answers(path, replace(answers, ngrams=np.arange(30.0).reshape(3, 10)))
    again = read_answers(path)
    for name in ("label", "predicted", "right", "asked", "loss", "row"):
        assert np.array_equal(getattr(again, name), getattr(answers, name)), name
    assert np.array_equal(again.ngrams, np.arange(30.0).reshape(3, 10))
    assert read_answers(tmp_path / "none.safetensors") is None
    assert (again.find(2), again.find(1)) == (2, None)
    table = spread([answers.right, np.array([np.nan])], [answers, answers_of([0], [1])])
    assert np.array_equal(table[0], [0, np.nan, 1, np.nan, np.nan, 1], equal_nan=True)
    assert table[1, 1] == np.inf  # an answer that is not finite is not one that was not asked for
    both = joined([answers, answers_of([1, 1], [1, 0])])
    assert (both.row.tolist(), both.right.tolist()) == ([0, 1, 2, 5], [0, 1, 1, 1])


def compared(gain, folds=5, rows=500, metric="accuracy"):
    rng = np.random.default_rng(3)
    cells, kept = [], {}
    for seed in range(folds):
        row = np.arange(seed, rows, folds)
        base = rng.random(len(row)) < 0.7
        better = base | (rng.random(len(row)) < gain) if gain else rng.random(len(row)) < 0.7
        for name, right in (("standard", base), ("efficient", better)):
            answers = answers_of(right, row)
            cell = make_cell(
                name, seed=seed, test_accuracy=float(answers.right.mean()), flops=10 - len(name)
            )  # noqa: E501
            cells.append(cell)
            kept[cell.key] = answers
    return make_results(cells, rows=kept, folds=folds, metric=metric, majority=0.5)


@pytest.mark.parametrize("metric", ["accuracy", "balanced", "macro-f1", "log-loss"])
@pytest.mark.parametrize("folds", [3, 5])
def test_a_verdict_covers_every_row_of_the_folds(metric, folds):
    verdict = judge(compared(0.3, folds, metric=metric))
    (comparison,) = verdict.comparisons
    assert (comparison.rows, comparison.sufficiency) == (500, "suffices")
    assert verdict.floors == {} or verdict.floors[4].learned


@pytest.mark.parametrize("folds", [5, None])
def test_rows_of_a_group_count_as_one(tmp_path, folds):
    results = compared(0.3)
    whole = {key: replace(answers, row=None) for key, answers in results.rows.items()}
    alone = results if folds else replace(results, rows=whole, folds=None)
    rows = {}
    for key, answers in alone.rows.items():  # blocks of ten rows with one answer
        block = (np.arange(len(answers)) if answers.row is None else answers.row) // 50
        right = np.array([float((block[n] + key[2]) % 3 > 0) for n in range(len(block))])
        right = right if key[0] == "standard" else np.where(block % 7 == 0, 1.0, right)
        rows[key] = replace(answers, right=right, loss=1.0 - right)
    alone = replace(alone, rows=rows, metric="log-loss")
    groups = {key: (np.arange(len(a)) if a.row is None else a.row) // 50 for key, a in rows.items()}
    grouped = {key: replace(answers, group=groups[key]) for key, answers in rows.items()}
    write_answers(tmp_path / "a.safetensors", next(iter(grouped.values())))
    assert (
        read_answers(tmp_path / "a.safetensors").group.tolist() == groups["standard", 4, 0].tolist()
    )
    together = replace(alone, rows=grouped)
    (of_rows,), (of_groups,) = (judge(each).comparisons for each in (alone, together))
    assert of_groups.rows == len(set(np.concatenate(list(groups.values()))))
    assert of_groups.difference.mean == pytest.approx(of_rows.difference.mean)
    assert of_groups.estimate.row_variance > 3 * of_rows.estimate.row_variance
    said = " ".join(notes(judge(together), together))
    assert f"other groups of test rows like these {of_groups.rows}." in said


def test_the_smallest_margin_is_one_at_which_it_suffices():
    results = compared(0.0, rows=200)
    said = sentence(judge(results), results)
    smallest = float(re.search(r"it would suffice at a margin of ([0-9.]+)", said)[1]) / 100
    assert judge(results, margin=smallest).comparisons[0].sufficiency == "suffices"
    assert judge(results, margin=smallest - 0.001).comparisons[0].sufficiency == "undecided"


def with_losses(results):
    rng = np.random.default_rng(1)
    for key, answers in results.rows.items():
        lost = 0.3 + 0.1 * (key[0] == "efficient") + 0.01 * rng.random(len(answers))
        results.rows[key] = replace(answers, loss=lost)
    return results


def test_two_seeds_make_no_claim_about_losses():
    results = with_losses(compared(0.0, 2, rows=200))
    assert not any("separate claim" in note for note in notes(judge(results), results))


def test_log_loss_is_a_claim_of_its_own():
    results = with_losses(compared(0.0, rows=200))
    verdict = judge(results)
    (claim,) = (note for note in notes(verdict, results) if "separate claim" in note)
    assert (verdict.outcome, "Its test loss grades" in claim) == ("undecided", True)
    by_loss = judge(results, metric="log-loss").comparisons[0].difference
    assert f"{100 * by_loss.mean:+.2f} hundredths of a nat" in claim
    assert f"it loses at most {-100 * by_loss.low:.1f}." in claim
    decided = judge(results, margin=0.9)
    assert not any("separate claim" in note for note in notes(decided, results))


def test_a_loss_that_ran_away_gives_no_interval():
    results = compared(0.3, metric="log-loss")
    key = ("efficient", 4, 1)
    lost = replace(results.rows[key], loss=np.full(100, np.nan))
    both = {**results.rows, key: lost, ("standard", 4, 1): lost}
    (comparison,) = judge(replace(results, rows=both)).comparisons
    assert comparison.difference.low is None
