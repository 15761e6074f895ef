from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import fisher_exact

from suffice.comparison.answers import Answers, from_scores
from suffice.comparison.results import Speed
from suffice.comparison.sufficiency import CAP, UNLEARNED, decide, level, more_seeds
from suffice.comparison.training import CellFiles
from suffice.comparison.two_way_interval import estimate
from suffice.comparison.verdict import ALPHA, _decided, hopeless, judge
from suffice.comparison.winner import why, write_winner
from suffice.errors import ConfigError
from suffice.utils.statistics import half_width, upper_rate

from .synthetic import from_accuracies, make_cell, make_results, make_survey


def spread_around(mean: float, sd: float, n: int) -> list[float]:
    """Values with exactly this mean and sample sd."""
    raw = np.arange(n) - (n - 1) / 2
    return [float(x) for x in mean + raw / raw.std(ddof=1) * sd]


def two(baseline: list[float], candidate: list[float], **changes):
    results = from_accuracies({"standard": baseline, "efficient": candidate}, **changes)
    return judge(results).comparisons[0]


def of_seeds(values: list[float]):
    return estimate(np.array(values)[:, None])


@pytest.mark.parametrize(
    ("mean", "sd", "word"),
    [
        (0.0, 0.001, "suffices"),
        (0.02, 0.001, "suffices"),
        (-0.005, 0.001, "suffices"),
        (-0.01, 0.001, "undecided"),
        (-0.009, 0.005, "undecided"),
        (-0.011, 0.005, "undecided"),
        (-0.02, 0.001, "does not suffice"),
        (-0.005, 0.0, "suffices"),
        (-0.01, 0.0, "undecided"),
        (-0.02, 0.0, "does not suffice"),
    ],
)
def test_the_whole_interval_decides(mean, sd, word):
    assert decide(of_seeds(spread_around(mean, sd, 5)), 0.01, 0.05) == word


def test_the_interval_is_strictly_inside_the_margin():
    difference = of_seeds(spread_around(-0.004, 0.004, 5))
    half = float(difference.half_width(0.05))
    low, high = -0.004 - half, -0.004 + half
    assert decide(difference, -low + 1e-9, 0.05) == "suffices"
    assert decide(difference, -low, 0.05) == "undecided"
    assert decide(difference, -high, 0.05) == "undecided"
    assert decide(difference, -high - 1e-9, 0.05) == "does not suffice"


@pytest.mark.parametrize("mean", [-0.004, -0.016])
def test_the_number_of_seeds_that_is_named_decides_and_one_fewer_does_not(mean):
    found = of_seeds(spread_around(mean, 0.008, 5))
    more = more_seeds(found, abs(mean + 0.01), 0.05, CAP)
    assert more == 5
    assert half_width(0.008, 5 + more) < 0.006 < half_width(0.008, 5 + more - 1)


def test_the_number_of_seeds_is_capped():
    found = of_seeds(spread_around(0.0, 0.01, 5))
    half = half_width(0.01, 5 + CAP)
    assert more_seeds(found, half + 1e-9, 0.05, CAP) == CAP
    assert more_seeds(found, half - 1e-9, 0.05, CAP) is None
    assert more_seeds(found, 0.0, 0.05, CAP) is None  # a mean at the margin


def test_a_single_seed_decides_nothing():
    found = two([0.9], [0.99])
    assert (found.sufficiency, found.more_seeds) == ("undecided", 2)
    assert (found.claim, found.p_value) == ("not tested", None)


def test_two_equal_differences_decide_nothing_and_three_do():
    found = two([0.9, 0.91], [0.93, 0.94])
    assert (found.sufficiency, found.more_seeds, found.claim) == ("undecided", 1, "not tested")
    assert (found.difference.sd, found.difference.low) == (0.0, None)
    found = two([0.9, 0.91, 0.92], [0.93, 0.94, 0.95])
    assert (found.sufficiency, found.claim, found.p_value) == ("suffices", "better", 0.0)


def test_exactly_equal_results_suffice_and_show_no_difference():
    values = [0.97, 0.98, 0.96, 0.97, 0.975]
    found = two(values, values)
    assert (found.claim, found.p_value, found.sufficiency) == ("not shown", 1.0, "suffices")
    assert found.difference.mean == 0.0


def test_claims_are_corrected_for_their_number():
    rng = np.random.default_rng(5)
    standard = rng.normal(0.9, 0.002, size=5)
    own = (standard + spread_around(0.004, 0.002, 5)).tolist()
    alone = judge(from_accuracies({"standard": standard.tolist(), "a": own})).comparisons[0]
    names = {"standard": standard.tolist(), "a": own}
    names |= {f"n{i}": rng.normal(0.9, 0.002, size=5).tolist() for i in range(2)}
    among = judge(from_accuracies(names)).find("a", 1)
    assert among.p_value == pytest.approx(3 * alone.p_value, rel=1e-12)


def test_untested_comparisons_do_not_weigh_on_the_others():
    values = spread_around(0.95, 0.002, 5)
    shifted = [v + e for v, e in zip(values, spread_around(0.004, 0.002, 5), strict=True)]
    alone = judge(from_accuracies({"standard": values, "a": shifted}))
    both = judge(from_accuracies({"standard": values, "b": [0.9], "a": shifted}))
    assert both.find("a", 1).p_value == alone.find("a", 1).p_value
    assert both.find("b", 1).claim == "not tested"


SURE = [0.970, 0.971, 0.969, 0.970, 0.970]
NEAR = [0.968, 0.969, 0.967, 0.968, 0.968]
LOST = [0.900, 0.901, 0.899, 0.900, 0.900]
WILD = [0.995, 0.930, 0.990, 0.940, 0.980]


@pytest.mark.parametrize(
    ("others", "outcome", "winner"),
    [
        ({"a": NEAR, "b": NEAR, "c": LOST}, "suffices", "b"),
        ({"a": NEAR, "b": WILD}, "suffices", "a"),  # one that is undecided hides none
        ({"a": WILD, "b": WILD, "c": LOST}, "undecided", "b"),
        ({"a": LOST}, "baseline", None),
    ],
)
def test_the_cheapest_that_suffices_is_named_else_the_cheapest_that_might(others, outcome, winner):
    verdict = judge(from_accuracies({"standard": SURE} | others))
    named = verdict.winner and verdict.winner.mechanism
    assert (verdict.outcome, named, verdict.baseline) == (outcome, winner, "standard")
    assert verdict.qualities[1].mean == pytest.approx(0.97, abs=1e-12)
    if outcome == "undecided":
        assert verdict.winner.more_seeds > 0
        assert verdict.winner.difference.low < -0.01 < verdict.winner.difference.high


@pytest.mark.parametrize("values", [NEAR, WILD])
@pytest.mark.parametrize("flops", [1000, 2000])
def test_one_that_is_not_cheaper_is_never_named(values, flops):
    verdict = judge(
        from_accuracies({"standard": SURE, "big": values}, flops={"standard": 1000, "big": flops})
    )
    assert (verdict.outcome, verdict.winner) == ("baseline", None)
    assert verdict.comparisons[0].cheaper is False


def test_a_costlier_one_can_suffice():
    verdict = judge(from_accuracies({"big": NEAR, "standard": SURE}))
    assert verdict.find("big", 1).sufficiency == "suffices"
    assert verdict.outcome == "baseline"


def test_each_is_held_against_the_baseline_with_as_many_heads():
    accuracies = {"standard@1": LOST, "standard@4": SURE, "a@1": LOST, "a@4": LOST, "a@8": SURE}
    verdict = judge(from_accuracies(accuracies))
    assert verdict.find("a", 1).sufficiency == "suffices"
    assert verdict.find("a", 4).sufficiency == "does not suffice"
    alone = verdict.find("a", 8)
    assert (alone.sufficiency, alone.difference, alone.cheaper) == ("undecided", None, False)
    assert (verdict.winner.mechanism, verdict.winner.num_heads) == ("a", 1)
    assert verdict.find("standard", 1) is None


def test_ties_are_broken_by_parameters_then_name_then_heads():
    cells = [
        make_cell("standard", h, s, flops=100, test_accuracy=0.9) for h in (1, 4) for s in SEEDS
    ]
    for name, parameters in (("zeta", 50), ("beta", 60), ("alpha", 60)):
        cells += [
            make_cell(name, h, s, flops=50, parameters=parameters, test_accuracy=0.9)
            for h in (4, 1)
            for s in SEEDS
        ]
    results = make_results(cells)
    assert judge(results).winner.mechanism == "zeta"
    assert judge(results).winner.num_heads == 1
    kept = replace(results, cells=tuple(c for c in results.cells if c.mechanism != "zeta"))
    assert judge(kept).winner.mechanism == "alpha"


SEEDS = range(3)


def test_the_cost_chosen_orders_the_mechanisms():
    cells = []
    for name, flops, parameters in (("standard", 100, 90), ("lean", 50, 80), ("small", 80, 30)):
        cells += [make_cell(name, 1, s, flops=flops, parameters=parameters) for s in SEEDS]
    times = {"standard": (3.0, 3.0, 9.0), "lean": (2.5, 2.5, 0.1), "small": (1.0, 2.0, 9.0)}
    speeds = [
        Speed(mechanism=n, num_heads=1, latency=t, batch_size=1, peak_bytes=1)
        for n, t in times.items()
    ]
    results = make_results(cells, speeds)
    assert judge(results).winner.mechanism == "lean"
    assert judge(results, cost="parameters").winner.mechanism == "small"
    assert judge(results, cost="latency").winner.mechanism == "small"
    assert judge(results, cost="latency").winner.cost.value == 2.0


def test_another_margin_gives_another_verdict():
    results = from_accuracies({"standard": SURE, "a": NEAR})
    assert judge(results).outcome == "suffices"
    assert judge(results, margin=0.001).outcome == "baseline"
    assert judge(results, margin=0.001).margin == 0.001


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"cost": "latency"}, "latency of a with num_heads=1"),  # which was not measured
        ({"cost": "flop"}, "'flop'"),
        ({"margin": 5}, "margin=5"),
        ({"failures": 1.5}, "failures=1.5"),
        ({"metric": "bleu"}, "BLEU"),
    ],
)
def test_illegal_options_are_refused(options, value):
    with pytest.raises(ConfigError, match=value):
        judge(from_accuracies({"standard": SURE, "a": NEAR}), **options)


@pytest.mark.parametrize(("names", "trained"), [(["a", "b"], "a, b"), ([], "none")])
def test_a_baseline_that_was_not_trained_is_refused(names, trained):
    results = from_accuracies(dict.fromkeys(names, SURE))
    with pytest.raises(ConfigError, match=f"'standard' was not trained; trained: {trained}"):
        judge(results)


def answered(right: dict[str, np.ndarray], **changes):
    """A comparison whose answers [S, R] were kept."""
    results = from_accuracies(
        {name: of.mean(axis=1).tolist() for name, of in right.items()}, **changes
    )
    rows = {
        (name, 1, seed): Answers(
            label=np.ones(len(one), dtype=np.int64),
            predicted=one.astype(np.int64),
            right=one.astype(float),
            asked=np.ones(len(one)),
            loss=np.where(one, 0.2, 1.2),
            confidence=np.full(len(one), 0.8),
        )
        for name, of in right.items()
        for seed, one in enumerate(of)
    }
    return replace(results, rows=rows)


def same_rows(gap: int, rows: int = 500, seeds: int = 5) -> dict[str, np.ndarray]:
    """Answers of which `gap` rows are right for the baseline alone, whatever the seed."""
    rng = np.random.default_rng(0)
    shared = rng.random((seeds, rows)) < 0.8
    standard, other = shared.copy(), shared.copy()
    standard[:, :gap], other[:, :gap] = True, False
    return {"standard": standard, "a": other}


def test_rows_on_which_all_seeds_agree_widen_the_interval():
    results = answered(same_rows(10))
    by_rows = judge(results).comparisons[0]
    by_seeds = judge(replace(results, rows={})).comparisons[0]
    assert by_rows.difference.mean == pytest.approx(-0.02, abs=1e-12)
    assert (by_seeds.difference.low, by_seeds.difference.high) == pytest.approx((-0.02, -0.02))
    assert by_seeds.sufficiency == "does not suffice"
    assert by_rows.difference.low < -0.03 < -0.01 < by_rows.difference.high
    assert (by_rows.sufficiency, by_rows.rows, by_seeds.rows) == ("undecided", 500, None)
    assert by_rows.rows_short
    assert by_rows.more_seeds is None


def test_another_metric_is_judged_from_the_same_answers():
    results = answered(same_rows(10))
    loss = judge(results, metric="log-loss").comparisons[0]
    assert loss.difference.mean == pytest.approx(-0.02, abs=1e-12)
    assert judge(results, metric="perplexity").metric.natural(-np.log(3.0)) == pytest.approx(3.0)
    with pytest.raises(ConfigError, match="bleu is for translations"):
        judge(results, metric="bleu")


@pytest.mark.parametrize(
    ("values", "margin", "learned"),
    [
        ([0.541, 0.545, 0.538, 0.543, 0.540], 0.01, False),
        ([0.548] * 5, 0.01, False),  # a gain within the margin
        ([0.548] * 5, 0.005, True),
        (SURE, 0.01, True),
    ],
)
def test_a_baseline_no_further_above_the_majority_than_the_margin_has_learned_nothing(
    values, margin, learned
):
    results = from_accuracies({"standard": values, "a": values}, majority=0.541)
    verdict = judge(results, margin=margin)
    assert (verdict.outcome, verdict.floors[1].learned) == (
        ("suffices", True) if learned else (UNLEARNED, False)
    )
    assert (verdict.winner is None) is not learned


def test_a_baseline_that_learned_with_other_heads_alone_gives_no_winner():
    noise = [0.541, 0.545, 0.538, 0.543, 0.540]
    accuracies = {"standard@1": noise, "standard@4": SURE, "a@1": noise, "a@4": LOST}
    verdict = judge(from_accuracies(accuracies, majority=0.541))
    assert (verdict.outcome, verdict.winner) == ("baseline", None)
    assert verdict.find("a", 1).sufficiency == UNLEARNED
    assert verdict.find("a", 4).sufficiency == "does not suffice"
    both = judge(from_accuracies(accuracies | {"a@4": SURE}, majority=0.541))
    assert (both.outcome, both.winner.num_heads) == ("suffices", 4)


def test_all_at_chance_never_suffices_whether_rows_were_kept_or_not():
    rng = np.random.default_rng(0)
    right = {name: rng.random((5, 512)) < 0.0625 for name in ("standard", "a", "b")}
    kept = answered(right, chance=0.0625, data=make_survey(512))
    for results in (kept, replace(kept, rows={}), replace(kept, rows={}, data=None)):
        verdict = judge(results)
        assert verdict.outcome == UNLEARNED
        assert {c.sufficiency for c in verdict.comparisons} == {UNLEARNED}


@pytest.mark.parametrize("metric", ["log-loss", "perplexity"])
def test_a_loss_is_held_against_that_of_the_training_frequencies(metric):
    data = replace(make_survey(512), frequency_loss=0.5)
    for value, outcome in ((0.505, UNLEARNED), (0.6, "suffices")):
        results = replace(with_losses({"standard": [value] * 5, "a": [value] * 5}), data=data)
        assert judge(results, metric=metric, margin=0.01).outcome == outcome


def test_the_floor_is_the_better_of_the_majority_and_a_guess():
    """The class that is most frequent in training may be rare in the test split."""
    values = {"standard": [0.32, 0.33, 0.34], "a": [0.32, 0.33, 0.34]}
    floor = judge(from_accuracies(values, majority=0.1, chance=0.5)).floors[1]
    assert (floor.name, floor.value, floor.learned) == ("a blind guess", 0.5, False)
    floor = judge(from_accuracies(values, majority=0.2, chance=0.1)).floors[1]
    assert (floor.name, floor.value) == ("always the most frequent class", 0.2)


def graded(confidence: float, *, rows: int = 400, seed: int = 0):
    """Answers to five classes of which "4" is half of the rows, as often right as always "4".

    A tenth of the other classes is right, and as many of "4" wrong; the probability of the label is
    its frequency to the power 1 - confidence.
    """
    rng, kept, cells = np.random.default_rng(seed), {}, []
    counts = np.array([1, 2, 3, 4, 10]) * rows // 20
    label = np.repeat(np.arange(5), counts)
    for name in ("standard", "a"):
        for number in range(4):
            predicted = np.full(rows, 4)
            changed = rng.choice(rows // 2, rows // 20, replace=False)
            predicted[changed] = label[changed]
            predicted[rows // 2 + rng.choice(rows // 2, rows // 20, replace=False)] = 0
            right = (predicted == label).astype(float)
            loss = -np.log(counts[label] / rows) * (1.0 - confidence) + rng.normal(0, 0.02, rows)
            of = replace(from_scores(right, loss), label=label, predicted=predicted)
            kept[name, 1, number] = of
            cells.append(make_cell(name, num_heads=1, seed=number, test_accuracy=right.mean()))
    frequencies = tuple(map(int, counts))
    data = replace(
        make_survey(rows),
        classes=("0", "1", "2", "3", "4"),
        counts=dict.fromkeys(("train", "validation", "test"), frequencies),
        majority=0.5,
        majority_class="4",
    )
    return replace(make_results(cells, majority=0.5, data=data, rows=kept), chance=0.2)


def test_the_score_that_tells_most_shows_what_was_learned():
    """Accuracy is exactly that of the majority; log-loss and balanced accuracy are not."""
    results = graded(0.2)
    floor = judge(results).floors[1]
    assert (floor.value, floor.above.mean, floor.learned) == (0.5, 0.0, False)  # within the margin
    assert floor.shown_by.metric == "log-loss"
    answers = results.rows["standard", 1, 0]
    counts = np.array(results.data.counts["train"]) + 1.0
    frequencies = -np.log(counts / counts.sum())[answers.label]
    assert floor.shown_by.value == pytest.approx(-frequencies.mean(), abs=1e-12)
    gain = np.mean([frequencies - results.rows["standard", 1, s].loss for s in range(4)])
    assert floor.shown_by.above.mean == pytest.approx(gain, abs=1e-12)
    assert floor.shown_by.confidence == pytest.approx(1 - 0.05 / 3)
    # a loss above that of the frequencies leaves balanced accuracy: 1/5 + 4/5 of a tenth - a tenth
    worse = judge(graded(-0.2)).floors[1].shown_by
    assert (worse.metric, worse.value) == ("balanced", pytest.approx(0.2))
    assert worse.above.mean > 0.0


def test_an_interval_that_holds_0_takes_no_verdict_from_a_baseline_that_learned():
    """Accuracy 3 points above the majority on seeds that differ by 3 points, log-loss far above."""
    results = graded(0.2)
    for seed, gain in enumerate((0.07, 0.0, 0.06, -0.01)):
        for name in ("standard", "a"):
            key, of = (name, 1, seed), results.rows[name, 1, seed]
            predicted, count = np.full(len(of), 4), round(abs(gain) * len(of))
            changed = slice(0, count) if gain > 0 else slice(len(of) - count, None)
            predicted[changed] = of.label[changed] if gain > 0 else 0
            right = (predicted == of.label).astype(float)
            results.rows[key] = replace(of, predicted=predicted, right=right)
    cells = [replace(c, test_accuracy=results.rows[c.key].right.mean()) for c in results.cells]
    verdict = judge(replace(results, cells=tuple(cells)))
    floor = verdict.floors[1]
    assert floor.above.mean == pytest.approx(0.03)
    assert floor.above.low < 0.0 < floor.above.high
    assert (floor.learned, floor.shown_by.metric) == (True, "log-loss")
    assert verdict.comparisons[0].sufficiency == "suffices"  # the same answers


def test_seeds_that_agree_are_not_above_a_floor_that_few_rows_could_explain():
    values = {"standard": [0.560, 0.561, 0.559], "a": [0.56] * 3}
    for rows, outcome in ((400, UNLEARNED), (40_000, "suffices")):
        results = from_accuracies(values, majority=0.541, data=make_survey(rows))
        assert judge(results).outcome == outcome


@pytest.mark.parametrize("failed", [0.60, float("nan")])
def test_one_failed_seed_neither_suffices_nor_shows_that_more_fail(failed):
    values = [0.97, 0.972, failed, 0.971, 0.97]
    verdict = judge(with_losses({"standard": SURE, "a": values}), metric="log-loss")
    found = verdict.comparisons[0]
    assert (verdict.outcome, found.sufficiency, verdict.code) == ("undecided", "undecided", 11)
    assert (found.failed, found.failed_of_baseline, found.more_seeds) == ((2,), (0, 5), None)
    assert found.failure_rate == pytest.approx(upper_rate(1, 5))
    assert found.failure_p == pytest.approx(fisher_exact([[1, 4], [0, 5]], "greater").pvalue)


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        (3, (0, 5), "undecided"),  # Fisher's p = 0.083
        (4, (0, 5), "does not suffice"),  # 0.024
        (5, (1, 5), "does not suffice"),
        (4, (1, 7), "undecided"),  # 0.072
        (4, (0, 7), "does not suffice"),
    ],
)
def test_rates_of_failure_are_tested_against_the_baselines(ours, theirs, word):
    """With values that are not numbers, so that no interval of means can decide."""
    candidate = [math.nan] * ours + [0.97] * (5 - ours)
    baseline = [math.nan] * theirs[0] + [0.97] * (theirs[1] - theirs[0])
    values = {"standard": baseline, "a": candidate}
    verdict = judge(with_losses(values), metric="log-loss")
    found = verdict.comparisons[0]
    assert (found.sufficiency, found.failed_of_baseline) == (word, theirs)
    assert verdict.code == (10 if word == "does not suffice" else 11)


def test_all_of_three_that_fail_beside_none_do_not_suffice():
    values = {"standard": [0.97, 0.971, 0.969], "a": [math.nan] * 3}
    found = judge(with_losses(values), metric="log-loss").comparisons[0]
    assert (found.failure_p, found.sufficiency) == (1 / 64, "does not suffice")


def test_a_rate_of_failure_that_was_asked_for_takes_as_many_seeds_as_bound_it():
    near = spread_around(0.9695, 0.0005, 14)
    for seeds, more in ((5, 9), (13, 1), (14, None)):
        results = from_accuracies({"standard": [0.97] * seeds, "a": near[:seeds]})
        found = judge(results, failures=0.2).comparisons[0]
        assert found.sound_seeds == more
        assert found.sufficiency == ("suffices" if more is None else "undecided")
        assert judge(results).code == 0
    assert 0.8**13 > 0.05 > 0.8**14


def with_losses(values: dict[str, list[float]]):
    """A comparison whose test losses are 1 minus the values."""
    results = from_accuracies({name: [0.5] * len(of) for name, of in values.items()})
    cells = [
        replace(cell, test_loss=1.0 - values[cell.mechanism][cell.seed]) for cell in results.cells
    ]
    return replace(results, cells=tuple(cells))


def test_failures_of_the_baseline_too_leave_the_word_to_the_interval():
    verdict = judge(
        from_accuracies({"standard": [0.97, 0.971, 0.60, 0.97], "a": [0.97, 0.60, 0.97, 0.971]})
    )
    assert verdict.failed == {1: (2,)}
    assert (verdict.comparisons[0].failed, verdict.outcome) == ((1,), "undecided")


def test_seeds_that_all_learned_leave_a_rate_open():
    verdict = judge(from_accuracies({"standard": SURE, "a": NEAR}))
    assert (verdict.failed, verdict.comparisons[0].failed) == ({1: ()}, ())
    assert verdict.comparisons[0].failure_rate == pytest.approx(1 - 0.05**0.2)


@pytest.mark.parametrize(
    ("baseline", "candidate", "word"),
    [
        ([0.995] * 5, [0.994] * 5, "too easy to tell"),
        ([0.990] * 5, [0.990] * 5, "too easy to tell"),  # misses exactly the margin
        ([0.9895] * 5, [0.9895] * 5, "suffices"),
        ([0.995] * 5, [0.999, 0.998, 0.97, 0.999, 0.998], "too easy to tell"),
        ([0.995] * 5, [0.95, 0.951, 0.949, 0.95, 0.95], "does not suffice"),
        ([0.995] * 5, [0.997, 0.995, 0.60, 0.996, 0.998], "undecided"),
        ([0.996, 0.60, 0.995, 0.995, 0.996], [0.995] * 5, "too easy to tell"),
    ],
)
def test_where_the_margin_is_more_than_is_missed_nothing_suffices(baseline, candidate, word):
    verdict = judge(from_accuracies({"standard": baseline, "a": candidate}))
    assert verdict.comparisons[0].sufficiency == word
    outcomes = {"does not suffice": "baseline", "too easy to tell": "too easy to tell"}
    assert verdict.outcome == outcomes.get(word, word)
    assert (verdict.winner is None) == (word in outcomes)
    assert verdict.code == {"too easy to tell": 12, "suffices": 0, "undecided": 11}.get(
        verdict.outcome, 10
    )


def test_heads_that_are_too_easy_hide_no_others_that_suffice():
    easy, hard = [0.995] * 5, [0.97] * 5
    values = {"standard@1": easy, "a@1": easy, "standard@4": hard, "a@4": hard}
    verdict = judge(from_accuracies(values))
    assert [c.sufficiency for c in verdict.comparisons] == ["too easy to tell", "suffices"]
    assert (verdict.outcome, verdict.winner.num_heads) == ("suffices", 4)


def test_a_loss_near_0_is_too_easy_as_well():
    easy = with_losses({"standard": [0.995] * 3, "a": [0.994] * 3})
    assert judge(easy, metric="log-loss").outcome == "too easy to tell"
    hard = with_losses({"standard": [0.5] * 3, "a": [0.5] * 3})
    assert judge(hard, metric="log-loss").outcome == "suffices"


def test_few_rows_make_no_difference_sure_though_their_answers_were_not_kept():
    lost = {"standard": [0.2169, 0.2178, 0.2172], "a": spread_around(0.2004, 0.0008, 3)}
    alone = judge(from_accuracies(lost)).comparisons[0]
    assert (alone.sufficiency, alone.rows) == ("does not suffice", None)
    few = judge(from_accuracies(lost, data=make_survey(750))).comparisons[0]
    assert (few.sufficiency, few.claim) == ("undecided", "not shown")
    # two models that answer independently: variance of a difference on one row
    p, q = few.quality.mean, few.quality.mean - few.difference.mean
    by_row = p * (1 - p) + q * (1 - q)
    error = float(few.estimate.standard_error)
    assert error == pytest.approx((by_row / 750 * (0.9 / 3 + 0.1)) ** 0.5, rel=1e-6)
    eight = judge(from_accuracies(lost, data=make_survey(750), answers=8.0)).comparisons[0]
    assert float(eight.estimate.standard_error) == pytest.approx(error / 8**0.5, rel=1e-6)
    many = judge(from_accuracies(lost, data=make_survey(1_000_000))).comparisons[0]
    assert many.sufficiency == "does not suffice"


def test_the_spread_of_seeds_counts_where_it_is_more_than_the_rows_imply():
    wild = {"standard": SURE, "a": WILD}
    alone = judge(from_accuracies(wild)).comparisons[0].difference
    bounded = judge(from_accuracies(wild, data=make_survey(10_000_000))).comparisons[0].difference
    assert bounded.low == pytest.approx(alone.low, abs=1e-5)


def test_most_seeds_that_end_with_their_best_epoch_are_still_improving():
    cells = [make_cell("standard", 4, s, epochs=4) for s in range(3)]
    cells += [replace(make_cell("a", 4, s, epochs=4), best_epoch=3 + (s == 0)) for s in range(3)]
    assert judge(make_results(cells)).improving == (("standard", 4),)


def test_a_model_is_left_for_use_with_a_warning_where_nothing_is_shown_to_be_learned(tmp_path):
    noise = {"standard": [0.541] * 5, "a": [0.541] * 5}
    results = from_accuracies(noise, majority=0.541)
    for cell in results.cells:
        model = CellFiles.of(tmp_path, *cell.key).model
        model.mkdir(parents=True)
        (model / "config.json").write_text("{}")
    learned = replace(results, majority=0.1)
    assert write_winner(tmp_path, learned, judge(learned)).name.startswith("a-h1")
    assert "warning" not in why(tmp_path)
    cells = [  # the model of the lowest validation loss is not the baseline's
        replace(c, epochs=({**c.epochs[0], "validation_loss": 1.0 - 0.1 * (c.key == ("a", 1, 3))},))
        for c in results.cells
    ]
    unknown = replace(results, cells=tuple(replace(cell, best_epoch=1) for cell in cells))
    assert write_winner(tmp_path, unknown, judge(unknown)).name == "a-h1-s3"
    assert UNLEARNED in json.loads((tmp_path / "winner.json").read_text())["warning"]
    assert UNLEARNED in why(tmp_path)


def test_the_cheapest_of_several_needs_a_wider_interval():
    close = spread_around(0.97 - 0.006, 0.003, 5)
    alone = judge(from_accuracies({"standard": [0.97] * 5, "a": close}))
    assert alone.comparisons[0].sufficiency == "suffices"
    among = {"standard": [0.97] * 5, "a": close} | dict.fromkeys("bcd", LOST)
    several = judge(from_accuracies(among)).find("a", 1)
    assert several.confidence == pytest.approx(1 - 0.05 / 4)
    assert several.sufficiency == "undecided"


def test_costlier_ones_are_no_choice_and_weigh_on_nothing():
    values = {"b1": WILD, "b2": WILD, "b3": LOST, "standard": SURE, "a": NEAR}
    verdict = judge(from_accuracies(values))
    assert {round(c.confidence, 9) for c in verdict.comparisons} == {0.95}
    verdict = judge(from_accuracies(values | {"c": LOST, "d": WILD}))
    assert verdict.find("d", 1).confidence == pytest.approx(1 - 0.05 / 2)
    assert verdict.find("b1", 1).confidence == pytest.approx(0.95)


def test_looks_after_each_seed_widen_the_interval_and_ask_more_of_a_difference():
    values = {"standard": [0.97] * 5, "a": spread_around(0.974, 0.0014, 5)}
    once = judge(from_accuracies(values)).comparisons[0]
    looked = judge(from_accuracies(values, most_seeds=12)).comparisons[0]
    assert level(ALPHA, 5, 12) < looked.p_value < ALPHA
    assert (once.claim, looked.claim) == ("better", "not shown")
    assert looked.confidence == pytest.approx(1 - level(0.05, 5, 12))
    assert looked.difference.low < once.difference.low


def test_no_more_seeds_are_named_than_the_plan_allows():
    values = {"standard": [0.97] * 5, "a": spread_around(0.966, 0.006, 5)}
    fixed = from_accuracies(values)
    found = {n: judge(replace(fixed, most_seeds=n)).comparisons[0] for n in (6, 10, 20)}
    named = {n: c.more_seeds for n, c in found.items() if c.sufficiency == "undecided"}
    assert all(more is None or more <= n - 5 for n, more in named.items())
    assert {more is None for more in named.values()} == {True, False}


@pytest.mark.parametrize(("errors", "short"), [(1.8, True), (2.1, False)])
def test_rows_are_too_few_where_they_alone_leave_the_interval_too_wide(errors, short):
    compared = judge(answered(same_rows(10))).comparisons[0]
    found = replace(compared.estimate, seed_variance=compared.estimate.row_variance)
    margin = errors * float(found.row_variance) ** 0.5 - float(found.mean)
    decided = _decided(replace(compared, estimate=found), margin, 0.05, ())
    assert (decided.sufficiency, decided.rows_short) == ("undecided", short)


@pytest.mark.parametrize(
    ("seeds", "mean", "sd", "most", "expected"),
    [
        (11, 0.9621, 0.0034, 12, True),  # the last of twelve seeds hardly moves a mean
        (11, 0.9621, 0.0034, 60, False),
        (6, 0.96, 0.005, 12, True),  # at the margin
        (3, 0.97, 0.003, 12, False),
    ],
)
def test_seeds_that_will_hardly_decide_are_not_worth_training(seeds, mean, sd, most, expected):
    values = {"standard": [0.97] * seeds, "a": spread_around(mean, sd, seeds)}
    found = judge(from_accuracies(values, most_seeds=12)).comparisons[0]
    assert found.sufficiency != "does not suffice"
    assert hopeless(found, 0.01, most) == expected


def test_accuracy_intervals_stay_within_0_and_100():
    verdict = judge(from_accuracies({"standard": [0.99, 1.0, 0.999], "a": [0.01, 0.0, 0.02]}))
    assert verdict.qualities[1].high == 1.0
    assert verdict.comparisons[0].quality.low == 0.0


def test_seeds_that_failed_are_held_against_the_baseline_of_their_own_heads():
    low, failing = [0.80] * 5, [0.90, 0.90, 0.75, 0.90, 0.90]
    values = {"standard@1": low, "a@1": low, "standard@4": [0.90] * 5, "a@4": failing}
    found = {c.num_heads: c for c in judge(from_accuracies(values)).comparisons}
    assert (found[1].failed, found[4].failed) == ((), (2,))
    few = {"standard@1": [0.8] * 2, "a@1": [0.8] * 2, "standard@4": [0.9] * 2, "a@4": [0.9, 0.6]}
    found = {c.num_heads: c for c in judge(from_accuracies(few)).comparisons}
    assert (found[1].failed, found[4].failed) == ((), (1,))


def test_a_seed_that_diverged_asks_for_no_further_seeds():
    lost = with_losses({"standard": [0.5], "a": [float("nan")]})
    assert judge(lost, metric="log-loss").comparisons[0].more_seeds is None
