"""Scikit-learn's digits, the first of them only, so that comparisons train in a moment."""

from __future__ import annotations

from functools import cache

import sklearn.datasets
from sklearn.utils import Bunch


@cache
def _few() -> Bunch:
    digits = sklearn.datasets.load_digits()
    return Bunch(images=digits.images[:300], target=digits.target[:300])


def use_few_digits(monkeypatch) -> None:
    few = _few()
    monkeypatch.setattr(sklearn.datasets, "load_digits", lambda: few)
