"""Per-row test predictions of every trained model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffice.data.survey import Survey
from suffice.errors import CheckpointError, ConfigError, DataError

FOLDER = "answers"
BAG = "bag of words"  # answers of one are kept beside those of models, with 0 heads
NONE = -1  # class of a row whose tokens have the labels
FORMAT = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """The answers of one model on R rows."""

    # all but the last [R]
    label: NDArray[np.int64]  # class; NONE where tokens have the labels
    predicted: NDArray[np.int64]  # class of the largest logit; NONE as above
    right: NDArray[np.float64]  # labels of the row that have the largest logit
    asked: NDArray[np.float64]  # labels of the row, >= 1
    loss: NDArray[np.float64]  # cross-entropy summed over the labels of the row, nats
    confidence: NDArray[np.float64]  # of the predicted class; NaN where tokens have labels
    row: NDArray[np.int64] | None = None  # number in the whole table; None: all seeds test the same
    group: NDArray[np.int64] | None = None  # None where rows are the samples
    # [R, 10], counts of BLEU: matching and all n-grams of one to four words, words of the
    # translation and of the reference
    ngrams: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        arrays = [getattr(self, field.name) for field in fields(self)]
        lengths = {len(array) for array in arrays if array is not None}
        if len(lengths) != 1 or 0 in lengths:
            raise ConfigError(f"answers of {sorted(lengths)} rows; give the same rows in all.")

    def __len__(self) -> int:
        return len(self.asked)

    def find(self, row: int) -> int | None:
        """Return the place of a row by its number; None if it was not tested."""
        if self.row is None:
            return row
        places = np.flatnonzero(self.row == row)
        return int(places[0]) if len(places) else None

    @property
    def by_row(self) -> bool:
        """Whether each row has one label, a class."""
        return bool(self.label[0] != NONE)

    @property
    def only_right(self) -> bool:
        """Whether it is known of each row how much is right, and nothing else."""
        return not self.by_row and bool(np.isnan(self.loss).all())


Key = tuple[str, int, int]
"""Mechanism, heads, seed."""


def majority_baseline(answers: Answers, survey: Survey) -> Answers | None:
    """Return the answers of a model that knows how frequent the classes are and reads nothing.

    It gives the class most frequent in training, with the frequencies as probabilities.
    """
    if not answers.by_row or not survey.classes or "train" not in survey.counts:
        return None
    counts = np.asarray(survey.counts["train"], dtype=np.float64)
    most, share = int(counts.argmax()), (counts + 1.0) / (counts + 1.0).sum()
    rows = len(answers)
    return Answers(
        label=answers.label,
        predicted=np.full(rows, most, dtype=np.int64),
        right=(answers.label == most).astype(np.float64),
        asked=np.ones(rows),
        loss=-np.log(share[answers.label]),
        confidence=np.full(rows, share[most]),
        row=answers.row,
    )


def spread(values: Sequence[NDArray[np.float64]], answers: Sequence[Answers]) -> Any:
    """Return values of S models in a table of all rows, float64 [S, R].

    NaN stands for a row that a model was not tested on, infinity for a value that is not finite.
    """
    rows = [np.arange(len(one)) if one.row is None else one.row for one in answers]
    table = np.full((len(rows), 1 + max(int(numbers.max()) for numbers in rows)), np.nan)
    for line, of_model, numbers in zip(table, values, rows, strict=True):
        line[numbers] = np.where(np.isfinite(of_model), of_model, np.inf)
    return table


def joined(answers: Sequence[Answers]) -> Answers:
    """Return the answers of models that were tested on different rows as those of one model."""
    if answers[0].row is None:
        return answers[0]
    _, first = np.unique(np.concatenate([one.row for one in answers]), return_index=True)
    return Answers(
        **{
            field.name: None
            if getattr(answers[0], field.name) is None
            else np.concatenate([getattr(one, field.name) for one in answers])[first]
            for field in fields(Answers)
        }
    )


def from_scores(scores: Any, loss: Any = None, row: Any = None, group: Any = None) -> Answers:
    """Return answers of which only a score of each row is known, [R], and maybe its loss."""
    right = np.asarray(scores, dtype=np.float64)
    none = np.broadcast_to(np.int64(NONE), len(right))
    unknown = np.broadcast_to(np.nan, len(right))
    return Answers(
        label=none,
        predicted=none,
        right=right,
        asked=np.broadcast_to(1.0, len(right)),
        loss=unknown if loss is None else np.asarray(loss, dtype=np.float64),
        confidence=unknown,
        row=row,
        group=group,
    )


def path_of(folder: Path, stem: str) -> Path:
    """Return the file of a cell's answers in the folder of its comparison."""
    return folder / FOLDER / f"{stem}.safetensors"


def write_answers(path: Path, answers: Answers) -> None:
    """Write the answers of one cell; its folder is made."""
    import torch

    from suffice.models import checkpoint

    named = {field.name: getattr(answers, field.name) for field in fields(answers)}
    tensors = {
        name: torch.from_numpy(np.ascontiguousarray(array, dtype=SMALL[name]))
        for name, array in named.items()
        if array is not None
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make {path.parent} ({error.strerror}); free it.") from error
    checkpoint.save(path, tensors, {"content": "answers", "format": FORMAT})


SMALL = {
    "label": np.int32,
    "predicted": np.int32,
    "right": np.float32,
    "asked": np.int32,
    "loss": np.float32,
    "confidence": np.float32,
    "row": np.int32,
    "group": np.int32,
    "ngrams": np.int32,
}
"""How the arrays are kept in a file."""


def read_answers(path: Path) -> Answers | None:
    """Read the answers of one cell; None if they were not kept."""
    if not path.exists():
        return None
    from suffice.models import checkpoint

    try:
        tensors, _ = checkpoint.load(path)
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        integers = {"label", "predicted", "row", "group"}
        return Answers(
            **{n: a.astype(np.int64 if n in integers else np.float64) for n, a in arrays.items()}
        )
    except (CheckpointError, ConfigError, TypeError) as error:
        raise DataError(
            f"{path} holds no answers ({error!s:.200}); delete it to judge by seeds alone."
        ) from error
