"""Tasks, seeds, rows and metrics of unequal sizes and orders, against numpy."""

from __future__ import annotations

import json
from io import StringIO
from itertools import combinations

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

import suffice
from suffice.comparison.results import write_results
from suffice.errors import ConfigError
from tests.comparison.external.test_readers import log, only
from tests.comparison.synthetic import from_accuracies


def table(path, scores: dict[tuple, float], columns: str = "task,seed,row,score"):
    """Write a table of scores by the values of its other columns."""
    lines = [",".join(map(str, (*key, score))) for key, score in scores.items()]
    path.write_text("\n".join([columns, *lines]))
    return path


def test_a_metric_without_a_mean_over_tasks_decides_beside_one_that_has_it(tmp_path):
    """Losses in [0, 1] of one task are shares and those of the other are not: no mean of them."""
    spread = {"one": (0.5, 0.001), "two": (2.0, 1.5)}
    for name, sign in (("a", 1), ("b", -1)):
        scores = {
            (task, seed): f"{0.8 + sign * 1e-3 * (seed - 2)},{mean + sign * sd * (seed - 2) / 2}"
            for task, (mean, sd) in spread.items()
            for seed in range(5)
        }
        table(tmp_path / f"{name}.csv", scores, "task,seed,acc,own")
    judged = suffice.verdict(
        [tmp_path / "a.csv", tmp_path / "b.csv"],
        metrics=["acc", "own"],
        margin={"acc": 0.05, "own": 0.05},
        better="higher",
    )
    assert judged.over_tasks == ()
    words = {(r.task, r.metric): v.comparisons[0].sufficiency for r, v in judged.judged}
    assert words == {
        ("one", "acc"): "suffices",
        ("two", "acc"): "suffices",
        ("one", "own"): "suffices",
        ("two", "own"): "undecided",
    }
    assert (judged.code, judged.words) == (11, {"b": "undecided"})


def test_rows_and_seeds_that_one_side_lacks_leave_the_others_paired_by_name(tmp_path):
    rng = np.random.default_rng(1)
    rows, lost = rng.permutation(50), {"a": {7}, "b": {3, 9}}
    seeds = {"a": (0, 2, 10, 9), "b": (10, 2, 4, 9, 3)}
    scores = {name: rng.normal(3, 1, (11, 50)) for name in seeds}
    for name, order in seeds.items():
        cells = [(seed, row) for seed in order for row in rows[:: 1 if name == "a" else -1]]
        of_name = {(s, f"q{r}"): scores[name][s, r] for s, r in cells if r not in lost[name]}
        table(tmp_path / f"{name}.csv", of_name, "seed,row,loss")
    judged = suffice.verdict([tmp_path / "a.csv", tmp_path / "b.csv"], margin=0.1)
    both = np.delete(scores["a"] - scores["b"], [3, 7, 9], axis=1)[[2, 9, 10]]
    results = judged.judged[0][0]
    assert only(judged).difference.mean == pytest.approx(both.mean())
    assert (only(judged).rows, only(judged).pairing.seeds) == (47, (2, 9, 10))
    notes = " ".join(results.external.notes)
    assert "3 of 50 rows" in notes
    assert "left out: 0, 3, 4" in notes


def test_percent_are_shares_and_the_baseline_is_the_one_that_is_named():
    rng = np.random.default_rng(2)
    scores = {name: rng.normal(0.7, 0.01, n) for name, n in (("a", 4), ("b", 6), ("c", 5))}
    options = {"baseline": "b", "margin": 0.02}
    shares = suffice.verdict(scores, **options)
    percent = suffice.verdict({n: 100 * x for n, x in scores.items()}, percent=True, **options)
    for judged in (shares, percent):
        for comparison in judged.judged[0][1].comparisons:
            expected = scores[comparison.mechanism].mean() - scores["b"].mean()
            assert comparison.difference.mean == pytest.approx(expected)
    assert percent.words == shares.words
    assert set(shares.words) == {"a", "c"}


def test_the_least_is_better_of_a_metric_whose_name_does_not_tell():
    old, new = [3.0, 3.1, 2.9, 3.05], [2.0, 2.1, 1.9]
    lower, higher = (
        only(suffice.verdict({"old": old, "new": new}, better=better, margin=0.1))
        for better in ("lower", "higher")
    )
    assert lower.difference.mean == pytest.approx(np.mean(old) - np.mean(new))
    assert (lower.sufficiency, higher.sufficiency) == ("suffices", "does not suffice")
    assert higher.difference.mean == -lower.difference.mean


def test_a_second_look_at_other_answers_of_the_same_mean_is_refused(tmp_path):
    rng = np.random.default_rng(3)
    old, new = ((rng.random((3, 60)) < 0.8).astype(float) for _ in range(2))
    options = {"looks": (3, 5), "state": tmp_path / "looks.json", "margin": 0.2}
    first = suffice.verdict({"old": old, "new": new}, **options)
    assert suffice.verdict({"old": old, "new": new}, **options).sentence == first.sentence
    new[1] = new[1, ::-1]
    with pytest.raises(ConfigError, match="new seed 1"):
        suffice.verdict({"old": old, "new": new}, **options)


@pytest.mark.parametrize(("moved", "code"), [(0.0, 0), (-0.03, 10)])
def test_reruns_are_split_in_every_way_into_groups_as_large_as_theirs(moved, code):
    rng = np.random.default_rng(4)
    old, again = rng.normal(0.8, 0.005, 4), rng.normal(0.8, 0.005, 6) + moved
    judged = suffice.verdict({"old": old, "again": again}, null=True)
    test = stats.ttest_ind(again, old, equal_var=False)
    runs = np.concatenate([again, old])
    told = sum(
        stats.ttest_ind(runs[list(group)], np.delete(runs, group), equal_var=False).pvalue < 0.05
        for group in combinations(range(10), 6)
    )
    low, high = test.confidence_interval(0.95)
    said = f"{100 * (again.mean() - old.mean()):+.2f} points, 95% CI [{100 * low:+.2f}, "
    assert f"{said}{100 * high:+.2f}]" in judged.sentence
    assert f"of 210 splits of all 10 reruns into two groups, {told} " in judged.sentence
    assert judged.code == code
    with pytest.raises(ConfigError, match="--null"):
        suffice.verdict({"old": old[:2], "again": again}, null=True)


def test_of_several_checkpoints_the_last_by_number_counts_and_the_end_before_all(tmp_path):
    accuracies = {"a": (0.8, 0.81, 0.79), "b": (0.82, 0.8, 0.7)}
    for name, of_name in accuracies.items():
        for seed, right in enumerate(of_name):
            places = {"checkpoint-500": 0.3, "checkpoint-1000": right}  # 500 is behind as a word
            if seed == 2:
                places |= {"checkpoint-1000": 0.4, ".": right}
            for place, accuracy in places.items():
                history = [{"eval_accuracy": 0.1}, {"eval_accuracy": accuracy}, {"loss": 1.0}]
                folder = tmp_path / name / f"seed{seed}" / place
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    found = only(suffice.verdict([tmp_path / "a", tmp_path / "b"], margin=0.1))
    expected = np.mean(accuracies["b"]) - np.mean(accuracies["a"])
    assert found.difference.mean == pytest.approx(expected)


def test_every_letter_of_inspect_counts_as_it_does_there(tmp_path):
    """Epochs of unequal number; a scorer that not all samples have is left out."""
    values = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
    letters = {f"q{row}": ["CPIN"[(row + e) % 4] for e in range(1 + row % 3)] for row in range(41)}
    changed = letters | {"q4": ["P"], "q5": ["P", "N"]}
    expected = {}
    for name, of_name in (("old", letters), ("new", changed)):
        content = log(of_name)
        content["samples"][3]["scores"]["other"] = {"value": 0.25}
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        expected[name] = np.array([np.mean([values[x] for x in one]) for one in of_name.values()])
    judged = suffice.verdict([tmp_path / "old.json", tmp_path / "new.json"], margin=0.2)
    verdict = judged.judged[0][1]
    assert verdict.qualities[0].mean == pytest.approx(expected["old"].mean())
    moved = expected["new"] - expected["old"]
    assert only(judged).difference.mean == pytest.approx(moved.mean())
    assert only(judged).rows == 41


def write_samples(folder, scores: dict[str, dict[str, np.ndarray]], changed: int):
    """Write samples of lm-evaluation-harness by task and metric, those of a filter last first.

    `match` is better the lower; the document of the number `changed` has a content of its own.
    """
    folder.mkdir(parents=True)
    directions, date = {}, "2026-01-02T03-04-05.6"
    for task, of_task in scores.items():
        lines = []
        for full, values in of_task.items():
            metric, _, of_filter = full.partition(",")
            directions.setdefault(task, {})[metric] = metric != "match"
            for n in range(len(values))[:: -1 if of_filter else 1]:
                digest = f"{folder.name} {n}" if n == changed else f"{n}"
                sample = {"doc_id": n, "doc_hash": digest, "filter": of_filter or "none"}
                lines.append(json.dumps(sample | {"metrics": [metric], metric: values[n]}))
        (folder / f"samples_{task}_{date}.jsonl").write_text("\n".join(lines))
    content = {"results": {}, "configs": {}, "higher_is_better": directions}
    (folder / f"results_{date}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(("tasks", "metric"), [("ab", "match"), ("a", "match,strict")])
def test_samples_of_the_harness_have_the_rows_and_directions_that_are_written(
    tmp_path, tasks, metric
):
    rng = np.random.default_rng(0)
    old, new = (
        {"a": {m: rng.random(50) for m in ("match", "match,strict")}, "b": {"hits": rng.random(40)}}
        for _ in range(2)
    )
    folders = [
        write_samples(tmp_path / name, {task: of[task] for task in tasks}, changed=3)
        for name, of in (("old", old), ("new", new))
    ]
    wanted = [metric] if "," in metric else []
    judged = suffice.verdict(folders, metrics=wanted, margin=0.3).judged
    found = judged[0][1].comparisons[0]
    lower = np.delete(old["a"][metric] - new["a"][metric], 3)
    assert (judged[0][0].metric, found.rows) == (metric, 49)
    assert found.difference.mean == pytest.approx(lower.mean())


def test_seconds_of_an_evaluation_are_no_metric_and_the_loss_is_the_last(tmp_path):
    for name, move in (("a", 0.0), ("b", 0.01)):
        for seed in range(3):
            entry = {"eval_runtime": 2.5 + seed, "eval_samples_per_second": 9.0 + seed}
            entry |= {"eval_jit_compilation_time": 1.0 + seed, "eval_loss": 3.0 + move + seed / 100}
            folder = tmp_path / name / f"seed{seed}"
            folder.mkdir(parents=True)
            (folder / "trainer_state.json").write_text(json.dumps({"log_history": [entry]}))
    judged = suffice.verdict([tmp_path / "a", tmp_path / "b"], margin=0.1)
    assert judged.judged[0][0].metric == "loss"
    assert only(judged).difference.mean == pytest.approx(-0.01)


def test_a_task_that_fails_decides_against_a_mean_that_suffices_and_is_named(tmp_path):
    """The baseline lacks a task, and the last task two rows: both are told."""
    rng, seeds, rows = np.random.default_rng(1), 4, 300
    losses = {"gains": (3.0, 0.01), "loses": (-0.2, 0.01), "open": (0.0, 9.0)}
    old, new = {}, {("extra", 0, 0): 1.0}
    for task, (mean, sd) in losses.items():
        values = rng.normal(20.0, 1.0, (seeds, rows))
        moved = values + rng.normal(mean, sd, (seeds, rows))
        for seed, row in np.ndindex(seeds, rows):
            old[task, seed, row] = values[seed, row]
            new[task, seed, row] = moved[seed, row]
    for seed in range(seeds):
        del new["open", seed, 5], new["open", seed, 9]
    files = [table(tmp_path / "old.csv", old), table(tmp_path / "new.csv", new)]
    judged = suffice.verdict(files, better="higher", margin={"": 5.0, "score": 0.1})
    words = [v.comparisons[0].sufficiency for _, v in (*judged.judged, *judged.over_tasks)]
    assert words == ["suffices", "does not suffice", "undecided", "suffices"]
    assert (judged.words, judged.code) == ({"new": "does not suffice"}, 10)
    assert judged.sentence.count("new does not suffice on") == 1
    assert "new does not suffice on loses by score." in judged.sentence
    console = Console(file=StringIO(), width=100)
    judged.print(console, whole=True)
    text = " ".join(console.file.getvalue().split())
    assert "2 of 300 rows are not in all runs" in text
    assert "left out: extra" in text


def test_two_seeds_that_both_have_are_paired():
    rng = np.random.default_rng(2)
    old = rng.normal(9.0, 1.0, (2, 80)) + np.array([[0.0], [30.0]])
    new = old - rng.normal(0.1, 0.05, (2, 80))
    judged = suffice.verdict({"old": old, "new": new}, metrics=["loss"], margin=0.05)
    of_seeds = (old - new).mean(axis=1)
    assert only(judged).difference.sd == pytest.approx(of_seeds.std(ddof=1))
    assert "Paired by seed and by row." in str(judged)


def test_an_order_or_a_kind_that_cannot_be_used_is_refused(tmp_path):
    rng, labels = np.random.default_rng(5), {"a": (0, 1, 2), "b": (5, 6, 7)}
    files = {
        name: table(tmp_path / f"{name}.csv", {(s,): rng.random() for s in seeds}, "seed,acc")
        for name, seeds in labels.items()
    }
    assert "Nothing is paired" in str(suffice.verdict(files))
    with pytest.raises(ConfigError, match="--paired: .* 0, 1, 2, 5, 6, 7"):
        suffice.verdict(files, paired=True)
    with pytest.raises(ConfigError, match="kind=table"):
        suffice.verdict({"a": rng.random(3), "b": rng.random(3)}, kind="table")


def test_folds_that_the_baseline_lacks_are_left_out(tmp_path):
    rng = np.random.default_rng(3)
    files, scores = [], {name: rng.random((4, 40)) for name in ("old", "new")}
    for name, folds in (("old", (3, 1, 2)), ("new", (0, 1, 2, 3))):
        of_rows = {
            (fold, f"q{fold} {n}"): scores[name][fold, n] for fold in folds for n in range(40)
        }
        files.append(table(tmp_path / f"{name}.csv", of_rows, "fold,row,score"))
    judged = suffice.verdict(files, margin=0.2)
    assert only(judged).difference.mean == pytest.approx((scores["new"] - scores["old"])[1:].mean())
    assert "left out: 0." in str(judged)


def test_every_argument_reaches_the_verdict_on_an_own_comparison_and_one_with_looks(tmp_path):
    scores = {
        "standard": [0.97, 0.971, 0.969, 0.97, 0.97],
        "efficient": [0.968, 0.970, 0.967, 0.968, 0.967],
    }
    write_results(tmp_path / "results.json", from_accuracies(scores))
    for options in ({}, {"looks": (5, 9), "state": tmp_path / "looks.json"}):
        results = scores if options else tmp_path
        metric = "score" if options else "accuracy"
        strict = suffice.verdict(results, margin={"": 0.5, metric: 0.001})
        assert strict.judged[0][1].margin == 0.001
        bounded = suffice.verdict(results, failures=0.2, **options)
        # seeds without a failure that bound its rate at 95%: 0.8^n < 0.05
        assert only(bounded).sound_seeds == np.ceil(np.log(0.05) / np.log(0.8)) - 5
