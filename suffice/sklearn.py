"""A text classifier with any attention mechanism as an estimator of scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from suffice.data.dataset import parts_of_keys
from suffice.data.reviews import dataset_of_texts
from suffice.data.rows import plain_text
from suffice.errors import ConfigError, DataError, check_known, installed_for
from suffice.loading import TextClassifier
from suffice.text import Words
from suffice.train import fit, resolve_device
from suffice.train.recipes import recipe
from suffice.train.recipes.own_data import TABLE, TOKENIZERS, with_settings

with installed_for("suffice.sklearn", "sklearn"):
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted

RULES = {name: TOKENIZERS[name] for name in ("words", "characters")}
PARTS = ("train", "validation", "test")


class AttentionClassifier(ClassifierMixin, BaseEstimator):
    """A transformer of two blocks that classifies texts, with the attention of your choice.

    The model, its sizes and its training are those of `suffice compare --data`. It reads the last
    `length` words of a text. A share of the rows is held out to choose the best epoch; equal texts
    are in one part.

    Args:
        mechanism: name of the attention, such as "standard", "efficient" or "standard+window:16".
        num_heads: heads of it.
        length: words of a text that are read, the last ones.
        d_model: features of a word.
        depth: number of blocks.
        epochs: passes over the training rows.
        batch_size: rows of a step.
        learning_rate: step size of AdamW.
        vocabulary_size: the most words there may be.
        tokenizer: rule that cuts texts: "words" or "characters".
        validation: share of the rows that is held out, between 0 and 1.
        random_state: seed of the weights and of the order of rows, an integer.
        device: "cpu" or "cuda".

    Attributes:
        classes_: the classes, sorted.
        model_: the trained `suffice.loading.TextClassifier`.

    Raises:
        ConfigError: at fit, for a value that is not legal.
        DataError: at fit or predict, for what is not a list of texts.

    Example:
        >>> texts = [f"{word} film {n}" for n in range(30) for word in ("good", "bad")]
        >>> model = AttentionClassifier("efficient", epochs=8, d_model=16, length=8)
        >>> model.fit(texts, [1, 0] * 30).predict(["good one", "bad one"]).tolist()
        [1, 0]
    """

    def __init__(
        self,
        mechanism: str = "standard",
        *,
        num_heads: int = 4,
        length: int = 64,
        d_model: int = 64,
        depth: int = 2,
        epochs: int = 5,
        batch_size: int = 32,
        learning_rate: float = 1e-3,
        vocabulary_size: int = 20_000,
        tokenizer: str = "words",
        validation: float = 0.1,
        random_state: int = 0,
        device: str = "cpu",
    ) -> None:
        self.mechanism = mechanism
        self.num_heads = num_heads
        self.length = length
        self.d_model = d_model
        self.depth = depth
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.vocabulary_size = vocabulary_size
        self.tokenizer = tokenizer
        self.validation = validation
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, y: Any) -> AttentionClassifier:  # noqa: N803 - scikit-learn's name
        """Train on texts and their classes.

        Args:
            X: texts [N]: a list, an array or a column of a DataFrame.
            y: class of each.
        """
        texts, labels = _texts(X), np.asarray(y)
        if labels.shape != (len(texts),):
            raise DataError(f"{len(texts)} texts and classes of {labels.shape}; give one for each.")
        for row, label in enumerate(labels.tolist()):
            if not isinstance(label, str) and plain_text(label) == "":
                raise DataError(f"y[{row}] is {label!r}, not a class; leave that row out.")
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:  # noqa: PLR2004
            raise DataError(f"all texts have the class {labels[:1].tolist()}; give two classes.")
        dataset = self._dataset(texts, numbers.tolist())
        settings = ("length", "d_model", "depth", "epochs", "batch_size", "learning_rate")
        chosen = with_settings(recipe(TABLE), {name: getattr(self, name) for name in settings})
        sizes = {"vocabulary_size": len(dataset.vocabulary), "num_classes": len(self.classes_)}
        chosen = replace(chosen, model=replace(chosen.model, **sizes))
        with torch.random.fork_rng():
            torch.manual_seed(self.random_state)
            network: Any = chosen.build(self.mechanism, self.num_heads)
            fit(network, dataset, chosen.training, seed=self.random_state, device=self.device)
        self.model_ = TextClassifier(
            network=network.to(resolve_device(self.device)).eval(),
            classes=tuple(map(str, range(len(self.classes_)))),
            tokenizer=Words(dataset.vocabulary, self.length, dataset.word_rule),
        )
        return self

    def _dataset(self, texts: list[str], numbers: list[int]) -> Any:
        check_known("tokenizer", self.tokenizer, RULES)
        if not 0.0 < self.validation < 1.0:
            raise ConfigError(f"validation={self.validation}; give a share between 0 and 1.")
        place = parts_of_keys(
            list(zip(texts, map(str, numbers), strict=True)), {"validation": self.validation}
        )
        rows: dict[str, tuple[list[str], list[int]]] = {part: ([], []) for part in PARTS}
        for text, number in zip(texts, numbers, strict=True):
            part = rows[place.get(text, "train")]
            part[0].append(text)
            part[1].append(number)
        rows["test"] = rows["validation"]  # whoever calls fit tests
        return dataset_of_texts(
            rows,
            where="X",
            unit="text",
            name="table",
            title="texts",
            source="fit",
            num_classes=len(self.classes_),
            length=self.length,
            vocabulary_size=self.vocabulary_size,
            rows=None,
            rule=RULES[self.tokenizer],
        )

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803 - scikit-learn's name
        """Return the probability of each class, float64 [N, classes], in the order of classes_."""
        check_is_fitted(self)
        predictions = self.model_.predict(_texts(X))
        shares = np.array([list(one.probabilities.values()) for one in predictions])
        return shares.reshape(len(predictions), len(self.classes_))

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803 - scikit-learn's name
        """Return the most probable class of each text, [N]."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def __sklearn_tags__(self) -> Any:
        """Say that inputs are texts, one dimension of them."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags


def _texts(inputs: Any) -> list[str]:
    """Return texts of a list, an array [N] or [N, 1], or a DataFrame of one column."""
    if isinstance(inputs, str):
        raise DataError("X is one text; give a list of texts.")
    values = np.asarray(inputs, dtype=object)
    if values.ndim == 2 and values.shape[1] == 1:  # noqa: PLR2004
        values = values[:, 0]
    if values.ndim != 1:
        raise DataError(f"X has the shape {values.shape}; give one text for each row.")
    texts: Sequence[Any] = values.tolist()
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"X[{row}] is {text!r:.40}, not a text; give a str for each row.")
    return list(texts)
