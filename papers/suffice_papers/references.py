"""Published figures of the tasks that recipes train, for comparison with our own.

Source: "You Need to Pay Better Attention: Rethinking the Mathematics of Attention Mechanism",
arXiv:2403.01643; each row names version and table. Figures are as printed, also where the text
contradicts them. Its mechanism "super" is `super_attention` here.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any, ClassVar

from suffice.errors import check_known

ARTICLE = "arXiv:2403.01643"
TABLE_OF_TASK = {"translation_es": "translation"}  # where the names differ


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One row of a published table; accuracies are fractions, None where not printed."""

    table: str  # name of the table here, for example "mnist"
    source: str  # version and table of the article
    mechanism: str  # name of the mechanism here
    num_heads: int  # heads of each attention layer
    d_model: int  # model width
    length: int | None  # tokens of an input
    num_layers: int  # number of attention layers
    parameters_layer: int  # parameters of one attention layer
    seconds_per_epoch: float | None  # training time of one epoch on the authors' machine
    train_accuracy: float  # accuracy on the training split
    train_loss: float  # loss on the training split
    train_top5: float | None  # top-5 accuracy on the training split
    test_accuracy: float  # accuracy on the test split
    test_loss: float  # loss on the test split
    test_top5: float | None  # top-5 accuracy on the test split
    train_bleu: float | None = None  # BLEU on the training split, of a translation, 0 to 100
    test_bleu: float | None = None  # BLEU on the test split
    parameters_model: int | None = None  # parameters of the whole model

    label: ClassVar[str] = "paper"  # of its line in a table

    @property
    def citation(self) -> str:
        """The article, with version and table."""
        return f"{ARTICLE}, {self.source}"


def reference(table: str, mechanism: str, heads: int) -> Reference | None:
    """Return the published row of a mechanism with a number of heads, None if there is none.

    Example:
        >>> reference("mnist", "super_attention", 4).parameters_layer
        37184
    """
    check_known("published table", table, reference_tables())
    return _rows().get((table, mechanism, heads))


def reference_tables() -> tuple[str, ...]:
    """List the tables by task: "mnist", "imdb" and so on of v2, "mnist_v1" and so on of v1."""
    return tuple(dict.fromkeys(table for table, _, _ in _rows()))


def references(task: str, recipe: str) -> dict[tuple[str, int], Reference]:
    """Return the published rows of a recipe's task by (mechanism, heads); empty if there are none.

    A recipe whose name ends in "_v1" is held against the first version's table.

    Example:
        >>> references("mnist", "mnist_vit_v1")["standard", 2].table, references("digits", "d")
        ('mnist_v1', {})
    """
    base = TABLE_OF_TASK.get(task, task)
    name = f"{base}_v1" if recipe.endswith("_v1") else base
    return {row[1:]: published for row, published in _rows().items() if row[0] == name}


@cache
def _rows() -> dict[tuple[str, str, int], Reference]:
    text = resources.files("suffice_papers").joinpath("references.csv").read_text("utf-8")
    rows = [_row(row) for row in csv.DictReader(text.splitlines())]
    return {(row.table, row.mechanism, row.num_heads): row for row in rows}


WORDS = ("table", "source", "mechanism")
PERCENT = ("train_accuracy", "train_top5", "test_accuracy", "test_top5")
COUNTS = ("num_heads", "d_model", "length", "num_layers", "parameters_layer", "parameters_model")


def _row(row: dict[str, str]) -> Reference:
    def value(name: str) -> Any:
        if name in WORDS:
            return row[name]
        if not row[name]:
            return None
        if name in PERCENT:
            return round(float(row[name]) / 100, 6)
        return int(row[name]) if name in COUNTS else float(row[name])

    return Reference(**{field.name: value(field.name) for field in fields(Reference)})
