"""The bag of words against scikit-learn's, and as the figure that a comparison must beat."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from suffice.comparison.answers import BAG
from suffice.comparison.bag_of_words import bag_of_words
from suffice.comparison.compare import _refuse_behind
from suffice.comparison.results import find_cells, read_results
from suffice.data import load
from suffice.data.reviews import words
from tests.cli.conftest import suffice  # noqa: F401 - a fixture

PLACES = ["oslo", "rome", "lima"]


@pytest.fixture
def table(tmp_path):
    """300 texts of 1 to 12 words whose class shows in some, and in part in word counts alone."""
    draw, rows = np.random.default_rng(3), []
    for number in range(300):
        place = PLACES[number % 3]
        near = draw.choice(["in", "to", "by", "sea", place], size=draw.integers(1, 12)).tolist()
        rows.append(f"{' '.join([*near, f'n{number}'])},{place[: 1 + (number % 7 > 5)]}")
    (tmp_path / "mine.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    return str(tmp_path / "mine.csv")


@pytest.mark.parametrize(
    "options", [{}, {"folds": 3, "fold": 1}, {"words": "characters", "folds": 4, "fold": 0}]
)
def test_answers_are_those_of_scikit_learn(table, options):
    text = pytest.importorskip("sklearn.feature_extraction.text")
    linear = pytest.importorskip("sklearn.linear_model")
    dataset = load("table", path=table, length=2, **options)
    texts, rule = dataset.test_texts, options.get("words", "unicode")
    if dataset.test_rows is not None:
        texts = [texts[row] for row in dataset.test_rows]
    counts = text.TfidfVectorizer(sublinear_tf=True, analyzer=lambda text: words(text, rule))
    model = linear.LogisticRegression(tol=1e-9, max_iter=10_000)
    model.fit(counts.fit_transform(dataset.train_texts), dataset.train.labels.numpy())
    shares = model.predict_proba(counts.transform(texts))
    answers, labels = bag_of_words(dataset), dataset.test.labels.numpy()
    assert len(labels) == len(answers)
    np.testing.assert_allclose(answers.confidence, shares.max(axis=1), atol=1e-4)
    np.testing.assert_allclose(answers.loss, -np.log(shares[range(len(labels)), labels]), atol=1e-3)
    assert answers.predicted.tolist() == shares.argmax(axis=1).tolist()
    assert answers.right.tolist() == (answers.predicted == labels).tolist()


def test_a_comparison_that_words_beat_stops_after_seed_0(suffice, brief, monkeypatch, table):  # noqa: F811
    monkeypatch.setattr(
        import_module("suffice.comparison.compare"), "_refuse_behind", _refuse_behind
    )
    options = ("--set", "learning_rate=1e-9", "--epochs", 1, "--seeds", 3)
    options += ("--data", table, "--mechanisms", "efficient,standard")
    stopped = suffice("compare", *options, "--out", "run")
    assert stopped.exit_code == 2
    assert find_cells(Path("run")) == [("efficient", 4, 0), ("standard", 4, 0)]
    assert "from scratch" in stopped.message
    assert suffice("compare", "--resume", "--out", "run").exit_code in (10, 11, 12)
    results = read_results(Path("run/results.json"))
    right = {name: np.zeros(300) for name in ("standard", BAG)}
    for seed in range(3):
        for name, heads in (("standard", 4), (BAG, 0)):
            answers = results.rows[name, heads, seed]
            right[name][answers.row] = answers.right
    shown = suffice("compare", "--resume", "--out", "run").stdout
    difference = 100 * (right[BAG].mean() - right["standard"].mean())
    assert float(re.search(rf"{BAG} +([+-][0-9.]+)", shown)[1]) == pytest.approx(
        difference, abs=0.1
    )
    page = Path("run/report.html").read_text()
    assert f"{100 * right[BAG].mean():.2f}" in page
    anew = suffice("compare", *options, "--seeds", 1, "--folds", 0, "--anyway", "--out", "other")
    assert anew.exit_code in (10, 11, 12), anew.stderr
