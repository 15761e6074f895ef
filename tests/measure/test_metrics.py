from __future__ import annotations

import math

import numpy as np
import pytest

from suffice.errors import ConfigError
from suffice.measure.answers import Answers, read_answers, write_answers
from suffice.measure.metrics import METRICS, calibration_error, check_metric, confusion

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


@pytest.mark.parametrize("name", METRICS)
def test_the_mean_of_the_rows_is_the_metric_and_their_spread_that_of_the_jackknife(name):
    metric = METRICS[name]
    rows = metric.rows(answers())
    whole = rows.mean()
    without = [metric.rows(answers(np.delete(np.arange(ROWS), i))).mean() for i in range(ROWS)]
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


def test_confusion_and_calibration_by_hand():
    one = Answers(
        label=np.array([0, 0, 1, 1]),
        predicted=np.array([0, 1, 1, 1]),
        right=np.array([1.0, 0.0, 1.0, 1.0]),
        asked=np.ones(4),
        loss=np.zeros(4),
        confidence=np.array([0.95, 0.95, 0.55, 0.55]),
    )
    assert confusion(one, 2).tolist() == [[1, 1], [0, 2]]
    assert calibration_error(one) == pytest.approx(0.5 * 0.45 + 0.5 * 0.45)


def test_answers_come_back_from_their_file(tmp_path):
    path = tmp_path / "answers" / "a-h1-s0.safetensors"
    one = answers()
    write_answers(path, one)
    again = read_answers(path)
    for name in ("label", "predicted", "right", "asked", "ngrams"):
        assert np.array_equal(getattr(again, name), getattr(one, name)), name
    assert again.loss == pytest.approx(one.loss, abs=1e-6)
    assert read_answers(tmp_path / "none.safetensors") is None


def test_an_unknown_metric_is_refused():
    with pytest.raises(ConfigError, match="macro-f1"):
        check_metric("macro-f2")
