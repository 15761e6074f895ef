"""Tasks, seeds, rows and metrics of unequal sizes and orders, against numpy."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

import suffice
from suffice.errors import ConfigError
from tests.measure.external.test_readers import log, only
from tests.measure.external.test_verdict import ends


def table(path, scores: dict[tuple, float], columns: str = "task,seed,row,score"):
    """Write a table of scores by the values of its other columns."""
    lines = [",".join(map(str, (*key, score))) for key, score in scores.items()]
    path.write_text("\n".join([columns, *lines]))
    return path


def test_tasks_of_unequal_rows_weigh_alike_in_the_mean_and_in_its_interval(tmp_path):
    """A variance for each task, with the degrees of freedom of their sum by Satterthwaite."""
    rng, sizes = np.random.default_rng(0), {"small": 40, "large": 400, "middle": 90}
    keys = [(task, 0, row) for task, rows in sizes.items() for row in range(rows)]
    old, new = ({key: rng.normal(sizes[key[0]], 20) for key in keys} for _ in range(2))
    paths = (table(tmp_path / f"{n}.csv", x) for n, x in (("a", old), ("b", new)))
    judged = suffice.verdict([*paths], better="higher", margin=1.0)
    moved = [np.array([new[k] - old[k] for k in keys if k[0] == task]) for task in sizes]
    shares = np.array([one.var(ddof=1) / len(one) for one in moved]) / 3**2
    freedom = shares.sum() ** 2 / sum(
        v**2 / (rows - 1) for v, rows in zip(shares, sizes.values(), strict=True)
    )
    half = stats.t.ppf(0.975, freedom) * np.sqrt(shares.sum())
    mean = np.mean([one.mean() for one in moved])
    assert ends(judged.over_tasks[0][1].comparisons[0]) == pytest.approx((mean - half, mean + half))


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


def test_reruns_of_unequal_groups_are_named_with_their_sign_and_split_as_they_are():
    rng = np.random.default_rng(4)
    old, again = rng.normal(0.8, 0.005, 4), rng.normal(0.77, 0.005, 6)
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
    assert judged.code == 10


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
