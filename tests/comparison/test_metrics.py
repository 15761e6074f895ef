from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from suffice.comparison.answers import (
    Answers,
    from_scores,
    majority_baseline,
)
from suffice.comparison.metrics import (
    METRICS,
    calibration_error,
    confusion,
    metric_of,
    own_metric,
    share_metric,
    value_in,
)
from suffice.data.survey import Survey
from suffice.errors import ConfigError

from .synthetic import make_cell

ROWS = 60


def answers(rows: np.ndarray | None = None) -> Answers:
    """Answers of a five-class problem, or some of its rows."""
    rng = np.random.default_rng(0)
    label = rng.choice(5, ROWS, p=[0.1, 0.1, 0.1, 0.2, 0.5])
    predicted = np.where(rng.random(ROWS) < 0.6, label, rng.choice(5, ROWS))
    matches = rng.integers(1, 5, size=(ROWS, 4))
    totals = matches + rng.integers(0, 4, size=(ROWS, 4))
    lengths = np.stack([totals[:, 0], totals[:, 0] + 1], axis=1)
    rows = np.arange(ROWS) if rows is None else rows
    return Answers(
        label=label[rows],
        predicted=predicted[rows],
        right=(label == predicted)[rows].astype(float),
        asked=np.ones(len(rows)),
        loss=rng.random(ROWS)[rows],
        confidence=rng.random(ROWS)[rows],
        ngrams=np.hstack([matches, totals, lengths])[rows].astype(float),
    )


def several_labels(rows: np.ndarray | None = None) -> Answers:
    """Answers of rows that ask for 1 to 9 labels each."""
    asked = np.random.default_rng(1).integers(1, 10, ROWS)
    rows = np.arange(ROWS) if rows is None else rows
    right = np.random.default_rng(2).binomial(asked, 0.3 + 0.05 * asked)
    return replace(
        answers(rows),
        label=np.full(len(rows), -1),
        right=right[rows].astype(float),
        asked=asked[rows].astype(float),
    )


def long_translations(rows: np.ndarray | None = None) -> Answers:
    """Answers whose translations are longer than the references."""
    one = answers(rows)
    return replace(one, ngrams=np.hstack([one.ngrams[:, :8], one.ngrams[:, :7:-1]]))


CASES = [(name, answers) for name in METRICS]
CASES += [("accuracy", several_labels), ("log-loss", several_labels), ("bleu", long_translations)]


@pytest.mark.parametrize(("name", "of_rows"), CASES)
def test_the_mean_of_the_rows_is_the_metric_and_their_spread_that_of_the_jackknife(name, of_rows):
    metric = METRICS[name]
    rows = metric.rows(of_rows())
    whole = rows.mean()
    without = [metric.rows(of_rows(np.delete(np.arange(ROWS), i))).mean() for i in range(ROWS)]
    pseudo = ROWS * whole - (ROWS - 1) * np.array(without)
    assert np.corrcoef(pseudo, rows)[0, 1] > 0.98
    assert pseudo.std() == pytest.approx(rows.std(), rel=0.25)


def test_values_by_hand():
    one = answers()
    recalls = [
        np.mean(one.predicted[one.label == c] == c) for c in range(5) if (one.label == c).any()
    ]
    assert METRICS["balanced"].rows(one).mean() == pytest.approx(np.mean(recalls), abs=1e-12)
    f1 = []
    for c in range(5):
        hits = ((one.label == c) & (one.predicted == c)).sum()
        f1.append(2 * hits / ((one.label == c).sum() + (one.predicted == c).sum()))
    assert METRICS["macro-f1"].rows(one).mean() == pytest.approx(np.mean(f1), abs=1e-12)
    sums = one.ngrams.sum(axis=0)
    bleu = math.exp(np.log(sums[:4] / sums[4:8]).mean() + 1 - sums[9] / sums[8])
    assert METRICS["bleu"].rows(one).mean() == pytest.approx(bleu, abs=1e-12)


def test_rows_of_several_labels_weigh_as_many_labels():
    one = several_labels()
    rows = METRICS["accuracy"].rows(one)
    assert rows.mean() == pytest.approx(one.right.sum() / one.asked.sum(), abs=1e-12)
    loss = METRICS["perplexity"].rows(one).mean()
    assert loss == pytest.approx(-one.loss.sum() / one.asked.sum(), abs=1e-12)


def test_classes_without_a_row_or_without_an_answer():
    """Class 1 has no row but is answered, class 2 has rows and is never answered."""
    label, predicted = np.array([0, 0, 0, 2, 3, 3]), np.array([0, 0, 1, 3, 3, 0])
    one = replace(answers(np.arange(6)), label=label, predicted=predicted)
    balanced, f1 = (METRICS[name].rows(one) for name in ("balanced", "macro-f1"))
    assert balanced.mean() == pytest.approx((2 / 3 + 0 + 1 / 2) / 3, abs=1e-12)
    assert f1.mean() == pytest.approx((4 / 6 + 0 + 2 / 4) / 3, abs=1e-12)
    # a row's own score: 1 / rows of its class where it is right
    shares = (balanced - balanced.mean()) * 3 / 6
    assert shares == pytest.approx([1 / 9, 1 / 9, -2 / 9, 0, 1 / 4, -1 / 4], abs=1e-12)


def test_bleu_without_a_match_of_some_order_is_0():
    one = answers()
    one.ngrams[:, 3] = 0
    assert not METRICS["bleu"].rows(one).any()
    assert len(METRICS["bleu"].rows(one)) == ROWS


def test_bleu_of_equal_lengths_has_no_penalty():
    one = answers()
    one.ngrams[:, 9] = one.ngrams[:, 8]
    sums = one.ngrams.sum(axis=0)
    want = math.exp(np.log(sums[:4] / sums[4:8]).mean())
    assert METRICS["bleu"].rows(one).mean() == pytest.approx(want, abs=1e-12)
    assert METRICS["bleu"].rows(long_translations()).mean() == pytest.approx(want, abs=1e-12)


def test_confidences_on_the_borders_of_bins():
    """1.0 is in the last of 4 bins, .25 in the second, with .49; gaps of a bin cancel."""
    right = np.array([0.0, 0.0, 1.0, 0.0, 1.0])
    confidence = np.array([1.0, 0.25, 0.49, 0.24, 0.76])
    one = replace(answers(np.arange(5)), right=right, confidence=confidence)
    gaps = abs(0.24), abs(0.25 + 0.49 - 1), abs(1.0 + 0.76 - 1)
    assert calibration_error(one, bins=4) == pytest.approx(sum(gaps) / 5, abs=1e-12)


def test_a_blind_guess_gives_the_commonest_class_with_its_share():
    """The commonest of training, which need not be that of the rows; no class has share 0."""
    one = replace(answers(np.arange(4)), label=np.array([0, 1, 1, 2]))
    counts = {"train": (7, 2, 0), "test": (1, 2, 1)}
    survey = Survey(rows={}, classes=("a", "b", "c"), counts=counts)
    guess = majority_baseline(one, survey)
    assert guess.predicted.tolist() == [0] * 4
    assert guess.right.tolist() == [1, 0, 0, 0]
    shares = np.array([8, 3, 3, 1]) / 12
    assert guess.loss == pytest.approx(-np.log(shares))
    assert guess.confidence == pytest.approx(8 / 12)
    assert guess.label.tolist() == [0, 1, 1, 2]
    assert guess.asked.tolist() == [1] * 4
    assert majority_baseline(several_labels(), survey) is None
    assert majority_baseline(one, Survey(rows={}, counts=counts)) is None
    assert majority_baseline(one, Survey(rows={}, classes=("a",), counts={"test": (1,)})) is None


@pytest.mark.parametrize(("better", "sign"), [("higher", 1), ("lower", -1)])
def test_figures_of_an_own_loop_are_oriented(better, sign):
    errors = from_scores([2.0, 4.0, 12.0])
    value, ratio = own_metric("rmse", better), own_metric("rmse", better, relative=True)
    assert value.rows(errors).tolist() == [sign * 2.0, sign * 4.0, sign * 12.0]
    log, steps = math.log(6.0), (-4 / 6, -2 / 6, 1.0)
    assert ratio.rows(errors) == pytest.approx([sign * (log + step) for step in steps])
    assert (value.oriented(6.0), ratio.oriented(6.0)) == (sign * 6.0, sign * log)
    assert (value.natural(sign * 6.0), ratio.natural(sign * log)) == pytest.approx((6.0, 6.0))
    names = ("em", "test/em", "eval_em")  # the last two say which part it is
    for metric in (share_metric, lambda name: own_metric(name, better)):
        assert [metric(name).title for name in names] == ["test em", *names[1:]]
    cell = replace(make_cell(), scores={"rmse": 6.0})
    assert (value_in(cell, value), value_in(cell, ratio)) == (sign * 6.0, sign * log)


def test_values_of_cells_without_rows():
    scores = {"balanced_accuracy": 0.6, "bleu": 25.0, "macro-f1": 0.5}
    cell = replace(make_cell(test_accuracy=0.7), test_loss=2.0, scores=scores)
    wanted = {"accuracy": 0.7, "balanced": 0.6, "macro-f1": 0.5, "bleu": 0.25}
    wanted |= {"log-loss": -2.0, "perplexity": -2.0, "somebody's": 0.7}
    assert {name: value_in(cell, metric_of(name)) for name in wanted} == wanted
    for name in ("balanced", "log-loss"):
        with pytest.raises(ConfigError, match="not known"):
            value_in(replace(cell, test_loss=None, scores={}), METRICS[name])


def test_confusion_by_hand():
    label, predicted = np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1])
    one = replace(answers(np.arange(4)), label=label, predicted=predicted)
    assert confusion(one, 3).tolist() == [[1, 1, 0], [0, 1, 0], [0, 1, 0]]
