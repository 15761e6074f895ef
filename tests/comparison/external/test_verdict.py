"""Verdicts on scores of other programs, against statsmodels, scipy and formulas."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import suffice
from suffice.comparison.sufficiency import UNLEARNED
from suffice.errors import ConfigError, DataError

RNG = np.random.default_rng(5)
OLD = RNG.normal(0.80, 0.004, 6).tolist()
NEW = RNG.normal(0.80, 0.004, 5).tolist()


def only(judged):
    (pair,) = judged.judged
    return pair[1].comparisons[0]


def ends(comparison) -> tuple[float, float]:
    return comparison.difference.low, comparison.difference.high


def test_unpaired_scores_have_welchs_interval_and_p_value():
    comparison = only(suffice.verdict({"old": OLD, "new": NEW}))
    test = stats.ttest_ind(NEW, OLD, equal_var=False)
    assert ends(comparison) == pytest.approx(test.confidence_interval(0.95), abs=1e-9)
    assert comparison.p_value == pytest.approx(test.pvalue, rel=1e-6)


def test_paired_scores_have_the_paired_interval_and_p_value():
    comparison = only(suffice.verdict({"old": OLD[:5], "new": NEW}, paired=True))
    test = stats.ttest_rel(NEW, OLD[:5])
    assert ends(comparison) == pytest.approx(test.confidence_interval(0.95), abs=1e-9)
    assert comparison.p_value == pytest.approx(test.pvalue, rel=1e-6)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("loss", [-0.004, 0.0, 0.004, 0.008, 0.012, 0.03])
def test_a_verdict_is_that_of_two_one_sided_tests_against_the_margin(loss, paired):
    weightstats = pytest.importorskip("statsmodels.stats.weightstats")
    new, old = np.array(NEW) - loss, np.array(OLD[:5])
    word = only(suffice.verdict({"old": old, "new": new}, paired=paired)).sufficiency
    # the side of the margin is tested at 2.5%, as by the 95% interval
    if paired:
        above = weightstats.ttost_paired(new, old, -0.01, 1e6)[1][1]
        below = weightstats.ttost_paired(new, old, -1e6, -0.01)[2][1]
    else:
        above = weightstats.ttost_ind(new, old, -0.01, 1e6, usevar="unequal")[1][1]
        below = weightstats.ttost_ind(new, old, -1e6, -0.01, usevar="unequal")[2][1]
    expected = "suffices" if above < 0.025 else "undecided"
    assert word == ("does not suffice" if below < 0.025 else expected)


def rows_of(accuracy: float, seeds: int, rows: int, rng) -> np.ndarray:
    """Right and wrong answers to rows of different difficulty, by seeds that differ a little."""
    ease = np.random.default_rng(1).normal(0.0, 1.0, rows)
    score = ease + rng.normal(0.0, 0.7, rows) + rng.normal(0.0, 0.1, (seeds, 1))
    threshold = np.quantile(score, 1.0 - accuracy)
    return (score + rng.normal(0.0, 0.1, (seeds, rows)) > threshold).astype(float)


def test_one_seed_is_judged_by_rows_and_says_so():
    rng = np.random.default_rng(4)
    old, new = rows_of(0.8, 1, 2000, rng), rows_of(0.8, 1, 2000, rng)
    judged = suffice.verdict({"old": old, "new": new}, margin=0.05)
    comparison, row = only(judged), (new - old)[0]
    assert comparison.of_rows_alone
    assert ends(comparison) == pytest.approx(
        stats.ttest_1samp(row, 0.0).confidence_interval(0.95), abs=5e-4
    )
    assert "nothing can be said about other trainings" in judged.sentence
    assert "paired by row" in str(judged).lower()


@pytest.mark.parametrize("seeds", [1, 3, 5])
def test_seeds_that_agree_on_a_few_rows_are_not_sure_of_others(seeds):
    old, new = np.zeros((seeds, 100)), np.zeros((seeds, 100))
    old[:, :50] = new[:, :50] = 1.0
    new[0, 0], new[0, 99] = 0.0, 1.0
    assert only(suffice.verdict({"old": old, "new": new})).sufficiency == "undecided"


def test_equal_numbers_of_few_digits_have_an_interval():
    scores = {"old": [0.86] * 3, "new": [0.85] * 3}
    assert only(suffice.verdict(scores, margin=0.012)).sufficiency == "undecided"
    assert "more digits" in suffice.verdict(scores, margin=0.012).sentence
    assert only(suffice.verdict(scores, margin=0.021)).sufficiency == "suffices"
    half = stats.t.isf(0.025, 2) * 0.001 / np.sqrt(18)
    finer = only(suffice.verdict({"old": [0.86] * 3, "new": [0.855] * 3}))
    assert ends(finer) == pytest.approx((-0.005 - half, -0.005 + half))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_loss_that_a_few_rows_hold_does_not_suffice_by_its_interval_alone(sign):
    row = sign * np.r_[np.full(57, 0.1), [3.0, 9.0, 20.0]]
    old = np.full((1, 60), 30.0)
    mean, half = row.mean(), stats.t.isf(0.025, 59) * stats.sem(row)
    factor = 1 + 8 * max(0.0, stats.skew(row) / np.sqrt(60) - 0.05)
    assert (factor > 2) == (sign > 0)
    for spare, word in ((1.001, "suffices"), (0.999, "undecided")):
        margin = mean + spare * factor * half
        found = suffice.verdict({"old": old, "new": old + row}, metrics=["loss"], margin=margin)
        assert only(found).sufficiency == word
    assert ends(only(found)) == pytest.approx((-mean - half, -mean + half))
    assert ("a few rows hold most" in found.sentence) == (sign > 0)


def test_groups_of_rows_are_the_samples(tmp_path):
    rng = np.random.default_rng(8)
    groups = np.repeat(np.arange(35), 1 + np.arange(35) % 4)
    lost = rng.normal(0, 1, 35)[groups] + rng.normal(0, 0.3, len(groups))
    for name, loss in (("old", np.zeros(len(groups))), ("new", lost)):
        rows = [f"q{r},{groups[r]},{9 + x}" for r, x in enumerate(loss)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["row,customer,loss", *rows]))
    files = [tmp_path / "old.csv", tmp_path / "new.csv"]
    judged = suffice.verdict(files, margin=1.0, groups="customer")
    left_out = np.array([lost[groups != g].mean() for g in range(35)])
    error = np.sqrt(34 / 35 * ((left_out - left_out.mean()) ** 2).sum())
    sizes = np.bincount(groups)
    half = error * stats.t.isf(0.025, sizes.sum() ** 2 / (sizes**2).sum() - 1)
    assert ends(only(judged)) == pytest.approx((-lost.mean() - half, -lost.mean() + half))
    assert (only(judged).rows, only(judged).estimate.unit) == (35, "groups of test rows")
    assert ends(only(suffice.verdict(files, margin=1.0)))[0] > -lost.mean() - half
    files[1].write_text(files[1].read_text().replace("q0,0,", "q0,1,"))
    with pytest.raises(DataError, match="'q0' is in group '0' and in group '1'"):
        suffice.verdict(files, margin=1.0, groups="customer")
    with pytest.raises(ConfigError, match="group"):
        suffice.verdict({"old": OLD, "new": NEW}, groups="customer")


def test_tasks_of_unequal_rows_count_alike_also_by_groups():
    rng, frames = np.random.default_rng(9), {"old": [], "new": []}
    pandas = pytest.importorskip("pandas")
    variances, freedoms, means = [], [], []
    for task, rows in (("a", 40), ("b", 300)):
        lost = rng.normal(0.1, 1.0 + (task == "a"), rows)
        for name, scores in (("old", np.full(rows, 9.0)), ("new", 9.0 + lost)):
            columns = {"task": task, "row": range(rows), "pair": np.arange(rows) // 2}
            frames[name].append(pandas.DataFrame({**columns, "loss": scores}))
        pairs = lost.reshape(-1, 2).mean(axis=1)
        variances.append(pairs.var(ddof=1) / len(pairs) / 4)
        freedoms.append(len(pairs) - 1)
        means.append(lost.mean())
    sources = {name: pandas.concat(parts) for name, parts in frames.items()}
    judged = suffice.verdict(sources, margin=1.0, groups="pair")
    found = judged.over_tasks[0][1].comparisons[0]
    squares = sum(v**2 / f for v, f in zip(variances, freedoms, strict=True))
    half = np.sqrt(sum(variances)) * stats.t.isf(0.025, sum(variances) ** 2 / squares)
    assert ends(found) == pytest.approx((-np.mean(means) - half, -np.mean(means) + half))
    assert found.rows == 170


def test_the_rows_that_are_named_decide():
    rng = np.random.default_rng(7)
    old = (rng.random((1, 500)) < 0.8).astype(float)
    flipped = rng.permutation(500)[:40]
    new = old.copy()
    new[0, flipped] = 1.0 - old[0, flipped]
    comparison = only(suffice.verdict({"old": old, "new": new}, margin=0.03))
    assert comparison.sufficiency == "undecided"
    times = 1 + comparison.more_rows / 500
    mean, half = comparison.difference.mean, comparison.difference.high - comparison.difference.mean
    assert half / np.sqrt(times) == pytest.approx(abs(mean + 0.03), rel=1e-3)


def test_failed_seeds_of_both_sides_are_counted():
    judged = suffice.verdict({"old": OLD, "new": [*NEW[:4], 0.2]})
    assert (only(judged).sufficiency, judged.code) == ("undecided", 11)
    assert "it failed in 1 of 5 seeds and the baseline in 0 of 6" in judged.sentence
    sound = suffice.verdict({"old": OLD, "new": NEW}, failures=0.2)
    assert (only(sound).sound_seeds, sound.code) == (9, 11)
    assert "would suffice at" not in sound.sentence


def test_a_ceiling_is_too_easy_and_chance_is_a_floor():
    judged = suffice.verdict({"old": [0.999, 0.998, 0.9985], "new": [0.998, 0.999, 0.9992]})
    assert (judged.code, only(judged).sufficiency) == (12, "too easy to tell")
    blind = suffice.verdict({"old": [0.251, 0.249, 0.25], "new": [0.249, 0.25, 0.252]}, chance=0.25)
    assert (blind.code, blind.judged[0][1].outcome) == (12, UNLEARNED)


def test_losses_are_better_the_lower_and_have_a_margin_of_their_own():
    old, new = [3.281, 3.279, 3.280, 3.2795], [3.283, 3.281, 3.2799, 3.2811]
    judged = suffice.verdict({"old": old, "new": new}, metrics=["loss"], margin=0.005)
    assert judged.code == 0
    assert only(judged).difference.mean == pytest.approx(np.mean(old) - np.mean(new))
    relative = suffice.verdict(
        {"old": old, "new": new}, metrics=["loss"], margin=0.001, relative=True
    )
    assert only(relative).difference.mean == pytest.approx(np.log(old).mean() - np.log(new).mean())
    with pytest.raises(ConfigError, match="loss"):
        suffice.verdict({"old": old, "new": new}, metrics=["loss"])


def test_a_declared_look_widens_the_interval_and_another_is_refused(tmp_path):
    state = tmp_path / "looks.json"

    def ask(seeds: int, new=NEW, **options):
        results = {"old": OLD[:seeds], "new": new[:seeds]}
        return suffice.verdict(results, **{"looks": (3, 5), "state": state, **options})

    first = ask(3)
    assert only(first).confidence > 0.95
    with pytest.raises(ConfigError, match="between the declared looks"):
        ask(4)
    assert ask(3).sentence == first.sentence
    with pytest.raises(ConfigError, match="look at 3"):
        ask(3, new=[0.9, *NEW[1:]])
    with pytest.raises(ConfigError, match="begun with looks"):
        ask(3, margin=0.02)
    with pytest.raises(ConfigError, match="begun with looks"):
        ask(3, looks=(3, 4))
    assert only(ask(5)).confidence > 0.95
    with pytest.raises(ConfigError, match="state"):
        suffice.verdict({"old": OLD, "new": NEW}, looks=(3, 5))


@pytest.mark.parametrize(
    ("old", "new", "options", "value"),
    [
        ([0.5, 0.6, float("nan")], NEW, {}, "not finite"),
        ([0.5], [0.6], {}, "one number"),
        (np.ones((1, 10)), np.zeros((1, 10)), {}, "10 rows"),
        ([0.5] * 3, [0.5] * 3, {}, "every score is 0.5"),
        (OLD, OLD, {}, "same scores"),
        (OLD, NEW, {"metrics": ["loss"], "better": "higher", "margin": 1.0}, "--better higher"),
        (OLD, NEW, {"metrics": ["acc"], "better": "lower", "margin": 1.0}, "--better lower"),
        ([5.0, 6.0, 700.0], [5.0, 6.0, 8.0], {"margin": 1.0}, "--better lower"),
        ([5.0, 6.0, 7.0], [5.0, 6.0, 8.0], {"margin": 1.0}, "8 looks like percent"),
        ([5.0, 6.0, 7.0], [5.0, 6.0, 100.5], {"percent": True}, "0 to 100"),
        (OLD, NEW, {"margin": 0.5}, "0.5 points"),
        (OLD, NEW, {"margin": "1 nat"}, "nat"),
        (OLD, NEW, {"margin": -0.01}, "-0.01"),
        (OLD, [100.0 * v for v in NEW], {}, "percent"),
        (OLD, [100.0 * v for v in NEW], {"better": "higher", "margin": 1.0}, "percent"),
        (OLD, ["a", "b"], {}, "new"),
        (OLD, np.zeros((2, 2, 2)), {}, r"\(2, 2, 2\)"),
        (OLD, NEW, {"baseline": "older"}, "older"),
        (OLD, NEW, {"kind": "excel"}, "excel"),
    ],
)
def test_bad_input_is_refused(old, new, options, value):
    with pytest.raises((ConfigError, DataError), match=value):
        suffice.verdict({"old": old, "new": new}, **options)


def test_a_file_may_hold_a_score_of_each_run(tmp_path):
    for name, scores in (("old", (0.91, 0.92, 0.915, 0.911)), ("new", (0.93, 0.92, 0.925, 0.931))):
        (tmp_path / f"{name}.txt").write_text("".join(f"{score}\n" for score in scores))
    found = suffice.verdict([tmp_path / "old.txt", tmp_path / "new.txt"])
    assert (found.code, found.words) == (0, {"new": "suffices"})
    assert "4 seeds" in found.sentence


def test_a_notebook_shows_the_sentence_the_table_and_the_picture():
    spread = np.linspace(-0.01, 0.01, 6)
    done = suffice.verdict({"a": 0.8 + spread, "b<c": 0.8 + spread[::-1]})
    html = done._repr_html_()
    assert "data:image/png;base64," in html
    assert "<td>b&lt;c</td>" in html


def test_a_name_given_to_a_file_holds_for_all_its_lines(tmp_path):
    for name, scores in (("a", OLD), ("b", NEW)):  # as wandb exports runs, each with a name
        lines = [f'"run-{seed}",{seed},{score}' for seed, score in enumerate(scores)]
        (tmp_path / f"{name}.csv").write_text("\n".join(['"Name","seed","acc"', *lines]))
    with pytest.raises(ConfigError, match="run-0"):
        suffice.verdict([tmp_path / "a.csv", tmp_path / "b.csv"])
    judged = suffice.verdict({"old": tmp_path / "a.csv", "new": tmp_path / "b.csv"})
    paired = stats.ttest_rel(NEW, OLD[:5])
    assert only(judged).p_value == pytest.approx(paired.pvalue, rel=1e-6)


def test_a_metric_of_ones_own_is_named_as_its_column(tmp_path):
    scores = {"a": (3.2, 3.21, 3.22), "b": (3.19, 3.19, 3.2)}
    rows = [f"{name},{n},{x}" for name, of in scores.items() for n, x in enumerate(of)]
    (tmp_path / "a.csv").write_text("\n".join(["name,seed,eval/loss", *rows]))
    judged = suffice.verdict(tmp_path / "a.csv", margin=0.1)
    assert "b suffices: eval/loss 3.1933" in judged.sentence
    assert "+0.0167 (plus is better), 95% CI" in judged.sentence
    assert "of eval/loss" not in str(judged)
