"""Scikit-learn's digits, the first of them only, so that comparisons train in a moment."""

from __future__ import annotations

from functools import cache

import sklearn.datasets
from sklearn.datasets import load_digits
from sklearn.utils import Bunch


@cache
def _few() -> Bunch:
    digits = load_digits()
    return Bunch(**{name: digits[name][:300] for name in ("data", "images", "target")})


def _load_few(*, return_X_y: bool = False) -> Bunch | tuple:  # noqa: N803 - scikit-learn's name
    few = _few()
    return (few.data, few.target) if return_X_y else few


def use_few_digits(monkeypatch) -> None:
    monkeypatch.setattr(sklearn.datasets, "load_digits", _load_few)
