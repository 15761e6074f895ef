"""The figures that the paper prints, to be shown beside ours.

Source: "You Need to Pay Better Attention: Rethinking the Mathematics of Attention Mechanism",
arXiv:2403.01643; version and table are named in each row. Figures are facts as printed, also
where the paper's text contradicts them. Its mechanism "super" is `super_attention` here.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from suffice.errors import unknown

TABLE_OF_TASK = {"translation_es": "translation"}  # where the names differ


@dataclass(frozen=True, kw_only=True)
class PaperRow:
    """One row of the paper's tables; accuracies are fractions, None where not printed.

    Args:
        table: name of the table here, for example "mnist".
        source: version and table of the paper.
        mechanism: name of the mechanism here.
        num_heads: heads.
        d_model: model width.
        length: tokens, None where not printed.
        num_layers: attention layers.
        parameters_layer: parameters of one attention layer.
        seconds_per_epoch: training time of one epoch on the authors' machine.
        train_accuracy: accuracy on the training split.
        train_loss: loss there.
        train_top5: top-5 accuracy there.
        test_accuracy: accuracy on the test split.
        test_loss: loss there.
        test_top5: top-5 accuracy there.
        train_bleu: BLEU on the training split, of a translation, 0 to 100.
        test_bleu: BLEU on the test split.
        parameters_model: parameters of the whole model, where printed.
    """

    table: str
    source: str
    mechanism: str
    num_heads: int
    d_model: int
    length: int | None
    num_layers: int
    parameters_layer: int
    seconds_per_epoch: float | None
    train_accuracy: float
    train_loss: float
    train_top5: float | None
    test_accuracy: float
    test_loss: float
    test_top5: float | None
    train_bleu: float | None = None
    test_bleu: float | None = None
    parameters_model: int | None = None


def paper_row(table_name: str, mechanism: str, heads: int) -> PaperRow | None:
    """Return the paper's row for a mechanism with a number of heads, None if it has none.

    Example:
        >>> paper_row("mnist", "super_attention", 4).parameters_layer
        37184
    """
    if table_name not in paper_tables():
        raise unknown("table of the paper", table_name, paper_tables())
    return _rows().get((table_name, mechanism, heads))


def paper_tables() -> tuple[str, ...]:
    """List the tables by task: "mnist", "imdb" and so on of v2, "mnist_v1" and so on of v1."""
    return tuple(dict.fromkeys(table for table, _, _ in _rows()))


def paper_table_of(task: str, recipe: str) -> str | None:
    """Return the table that shows the same task, None if the paper has none.

    A recipe whose name ends in "_v1" is held against the first version's table.

    Example:
        >>> paper_table_of("mnist", "mnist_vit_v1"), paper_table_of("digits", "digits_vit")
        ('mnist_v1', None)
    """
    base = TABLE_OF_TASK.get(task, task)
    name = f"{base}_v1" if recipe.endswith("_v1") else base
    return name if name in paper_tables() else None


def paper_rows(task: str, recipe: str) -> dict[tuple[str, int], PaperRow]:
    """Return the paper's rows of the same task by (mechanism, heads); none if it has none."""
    table = paper_table_of(task, recipe)
    return {(row.mechanism, row.num_heads): row for row in _rows().values() if row.table == table}


def paper_seconds(version: str, task: str, mechanism: str, heads: int) -> float | None:
    """Return the paper's seconds for 5,000 samples on its edge device, None where not printed.

    Example:
        >>> paper_seconds("v2", "imdb", "efficient", 4)
        0.17
    """
    return _edge().get((version, task, mechanism, heads))


@cache
def _edge() -> dict[tuple[str, str, str, int], float]:
    text = resources.files("suffice.papers").joinpath("paper_edge.csv").read_text("utf-8")
    return {
        (row["version"], row["task"], row["mechanism"], int(row["num_heads"])): float(
            row["seconds"]
        )
        for row in csv.DictReader(text.splitlines())
    }


@cache
def _rows() -> dict[tuple[str, str, int], PaperRow]:
    text = resources.files("suffice.papers").joinpath("paper_rows.csv").read_text("utf-8")
    rows = [_row(row) for row in csv.DictReader(text.splitlines())]
    return {(row.table, row.mechanism, row.num_heads): row for row in rows}


def _row(row: dict[str, str]) -> PaperRow:
    whole = ("num_heads", "d_model", "length", "num_layers", "parameters_layer", "parameters_model")
    plain = ("seconds_per_epoch", "train_loss", "test_loss", "train_bleu", "test_bleu")
    percent = ("train_accuracy", "train_top5", "test_accuracy", "test_top5")
    numbers: dict[str, Any] = {
        **{name: int(row[name]) if row[name] else None for name in whole},
        **{name: float(row[name]) if row[name] else None for name in plain},
        **{name: round(float(row[name]) / 100, 6) if row[name] else None for name in percent},
    }
    return PaperRow(
        table=row["table"],
        source=row["source"],
        mechanism=row["mechanism"],
        **numbers,
    )
