"""The estimator of scikit-learn: what its checks, pipelines and searches ask of it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks as checks

from suffice.errors import ConfigError, DataError
from suffice.sklearn import AttentionClassifier
from suffice.train import fit

TEXTS = [f"word{n % 7} {'good' if n % 2 else 'bad'} film" for n in range(80)]
LABELS = ["yes" if n % 2 else "no" for n in range(80)]
SIZES = {"d_model": 16, "depth": 1, "length": 4}
TINY = {**SIZES, "epochs": 5, "batch_size": 8, "learning_rate": 1e-2}


def lowered(texts):
    return [text.lower() for text in texts]


@pytest.fixture(scope="module")
def fitted():
    return AttentionClassifier("efficient", **TINY).fit(TEXTS, LABELS)


def test_texts_of_the_training_are_told_apart(fitted):
    assert fitted.classes_.tolist() == ["no", "yes"]
    assert fitted.predict(["a good film", "a bad one"]).tolist() == ["yes", "no"]
    shares = fitted.predict_proba(np.array(["good", "bad", "film"])[:, None])
    assert shares.shape == (3, 2)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, atol=1e-6)
    assert fitted.score(TEXTS, LABELS) == 1.0


def test_the_seed_decides_and_the_global_state_of_torch_stays(fitted):
    import torch

    torch.manual_seed(7)
    before = torch.get_rng_state()
    again = AttentionClassifier("efficient", **TINY).fit(TEXTS, LABELS)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(again.predict_proba(TEXTS), fitted.predict_proba(TEXTS))


def test_a_pipeline_is_cross_validated_and_searched():
    pipeline = make_pipeline(FunctionTransformer(lowered), AttentionClassifier(**TINY))
    scores = cross_val_score(pipeline, TEXTS, LABELS, cv=3)
    assert scores.shape == (3,)
    assert scores.mean() > 0.9
    grid = {"attentionclassifier__mechanism": ["standard", "efficient"]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(TEXTS, LABELS)
    assert search.best_score_ > 0.9


@pytest.mark.filterwarnings("ignore:Can't test estimator")
def test_the_checks_of_scikit_learn_hold():
    """They stop where rows of numbers are needed; those that need none are called by name."""
    checks.check_estimator(AttentionClassifier())
    for name in (
        "check_parameters_default_constructible",
        "check_get_params_invariance",
        "check_set_params",
        "check_no_attributes_set_in_init",
        "check_estimator_repr",
    ):
        assert getattr(checks, name)("AttentionClassifier", AttentionClassifier()) is None


@pytest.mark.parametrize(
    ("tokenizer", "names"),
    [("characters", {"good": "qz", "bad": "wx"}), ("words", {"good": "schön", "bad": "übel"})],
)
def test_new_texts_are_cut_as_those_of_the_training(tokenizer, names):
    """Words that are new to the vocabulary, of characters that are not; letters beyond ASCII."""
    joint = "" if tokenizer == "characters" else " "
    texts = [f"k{n}{joint}{names['good' if n % 2 else 'bad']}" for n in range(80)]
    model = AttentionClassifier(tokenizer=tokenizer, **TINY).fit(texts, LABELS)
    new = [f"k{n}9{joint}{names[name]}" for n in range(80, 90) for name in ("good", "bad")]
    assert model.predict(new).tolist() == ["yes", "no"] * 10


def test_sizes_seed_and_share_held_out_are_those_that_were_given(monkeypatch):
    asked = []

    def recorded(network, dataset, training, **options):
        asked.append((options["seed"], training.batch_size, training.learning_rate))
        return fit(network, dataset, training, **options)

    monkeypatch.setattr("suffice.sklearn.fit", recorded)
    sizes = {"num_heads": 2, "length": 5, "d_model": 12, "depth": 3, "vocabulary_size": 8}
    options = {**sizes, "epochs": 1, "batch_size": 7, "learning_rate": 1e-2, "validation": 0.4}
    first, second = (
        AttentionClassifier(**options, random_state=seed).fit(TEXTS, LABELS) for seed in (3, 4)
    )
    network, read = first.model_.network, first.model_.tokenizer
    assert (len(read.words), read.length, len(network.blocks)) == (8, 5, 3)
    assert {(b.attention.spec.num_heads, b.attention.spec.d_model) for b in network.blocks} == {
        (2, 12)
    }
    assert asked == [(3, 7, 1e-2), (4, 7, 1e-2)]
    assert not np.allclose(first.predict_proba(TEXTS), second.predict_proba(TEXTS))
    held = first._dataset([f"{text} {n}" for n, text in enumerate(TEXTS)], [0, 1] * 40)
    assert (len(held.train), len(held.validation)) == (48, 32)


def test_an_estimator_is_cloned_without_what_it_learned(fitted):
    copy = clone(fitted).set_params(mechanism="standard")
    assert copy.get_params()["mechanism"] == "standard"
    assert copy.get_params()["d_model"] == 16
    with pytest.raises(NotFittedError):
        copy.predict(TEXTS)


@pytest.mark.parametrize(
    ("changes", "texts", "labels", "named"),
    [
        ({"mechanism": "eficient"}, TEXTS, LABELS, "eficient"),
        ({"validation": 1.5}, TEXTS, LABELS, "1.5"),
        ({}, TEXTS, ["yes"] * 80, "yes"),
        ({}, TEXTS, LABELS[1:], "79"),
        ({}, [*TEXTS[1:], 3], LABELS, "79. is 3"),
        ({}, "good", LABELS, "one text"),
        ({}, pd.DataFrame({"a": TEXTS, "b": TEXTS}), LABELS, r"\(80, 2\)"),
        *(
            ({}, TEXTS, pd.Series([False, True] * 20 + [pd.NA] * 40, dtype=dtype), r"y\[40\]")
            for dtype in ("string", "object", "boolean", "category", "Int64")
        ),
        ({}, TEXTS, [0, 1, None, 1] * 20, r"y\[2\] is None"),
        ({}, TEXTS, [0.0, 1.0, 1.0, float("nan")] * 20, r"y\[3\] is nan"),
    ],
)
def test_what_cannot_be_fitted_is_refused(changes, texts, labels, named):
    with pytest.raises((ConfigError, DataError), match=named):
        AttentionClassifier(**(TINY | changes)).fit(texts, labels)


def test_the_package_does_not_load_scikit_learn():
    code = "import sys, suffice.loading, suffice.comparison; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
