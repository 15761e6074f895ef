"""What results of other programs lack, hold besides, or say in two places, against numpy."""

from __future__ import annotations

import json

import numpy as np
import pytest

import suffice
from suffice.measure.results import write_results
from tests.measure.external.test_readers import only
from tests.measure.external.test_unequal import table
from tests.measure.synthetic import from_accuracies


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
    text = " ".join(note for results, _ in judged.judged for note in results.external.notes)
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
