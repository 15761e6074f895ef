"""Scores in tables: a column for each of task, seed, row and score, or a number a line."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from suffice.data.files import lines
from suffice.data.rows import (
    decode_lines,
    find_delimiter,
    kind_of_file,
    plain_text,
    read_rows,
    refuse_columns,
)
from suffice.errors import ConfigError, DataError, check_known
from suffice.measure.external.runs import RowNames, Run, Source, number_of
from suffice.utils.grammar import split_list

TABLE, COLUMN = "table", "column of scores"
ROLES = {
    "model": ("model", "mechanism", "method", "system", "name", "variant"),
    "task": ("task", "dataset", "benchmark"),
    "seed": ("seed", "run", "replicate", "repeat", "trial"),
    "fold": ("fold",),
    "row": ("row", "id", "doc_id", "sample_id", "example", "example_id", "idx", "index"),
    "group": (),
    "score": ("score", "accuracy", "acc", "correct", "value", "loss", "test_score", "metric"),
    "answer": ("answer", "prediction", "predicted", "response"),
    "label": ("label", "target", "gold", "truth", "expected"),
}
"""Names of columns by what they hold, the likeliest first; groups of rows are always named."""


def parse_columns(text: str | None) -> dict[str, str]:
    """Return the column of each role that a text names.

    Example:
        >>> parse_columns("seed=run,score=acc")
        {'seed': 'run', 'score': 'acc'}
    """
    named = {}
    for word in split_list(text or ""):
        role, equals, column = word.partition("=")
        if not (equals and column):
            raise ConfigError(f"--columns {word}: write ROLE=NAME, such as seed=run,score=acc.")
        check_known("role of a column", role, ROLES)
        named[role] = column
    return named


def _roles(
    path: str, names: list[str], columns: Mapping[str, str], metrics: tuple[str, ...]
) -> tuple[dict[str, str], list[str]]:
    lacking = [column for column in (*columns.values(), *metrics) if column not in names]
    if lacking:
        refuse_columns(path, names, lacking, hint="name others with --columns or --metric.")
    by_name = {name.lower(): name for name in names}
    roles = dict(columns)
    for role, usual in ROLES.items():
        taken = set(roles.values())
        there = [by_name[name] for name in usual if by_name.get(name) not in (None, *taken)]
        if role not in roles and there:
            roles[role] = there[0]
    if {"seed", "fold"} <= roles.keys():
        named = {"seed", "fold"} & columns.keys()
        if len(named) != 1:
            raise DataError(
                f"{path} has seeds ({roles['seed']}) and folds ({roles['fold']}); give one "
                f"partition alone, or name rows and --columns seed={roles['seed']}, which makes "
                "one run of all folds of a seed."
            )
        del roles[({"seed", "fold"} - named).pop()]
    scores = [*metrics] or [name for name in [roles.pop("score", None)] if name]
    roles.pop("score", None)
    if scores:
        roles.pop("answer", None)
    elif "answer" not in roles:
        rest = [name for name in names if name not in roles.values()]
        if len(rest) != 1:
            refuse_columns(path, names, ["score"], hint="name it with --columns score=NAME.")
        scores = rest
    elif "label" not in roles:
        raise DataError(
            f"{path} has answers ({roles['answer']}) and no column of labels to score them by; "
            "name it with --columns label=NAME, or a column of scores."
        )
    return roles, scores


@dataclass
class _Group:
    rows: array[int] = field(default_factory=lambda: array("q"))
    scores: dict[str, array[float]] = field(default_factory=dict)


def read_table(
    path: Path,
    name: str,
    columns: Mapping[str, str],
    metrics: tuple[str, ...],
    row_names: RowNames,
) -> list[Source]:
    """Return what a table holds: a source for each model that a column names, else one."""
    names, rows = read_rows(str(path))
    return read_records(str(path), name, names, rows, columns, metrics, row_names)


def read_records(
    path: str,
    name: str,
    names: list[str],
    numbered_rows: Iterable[tuple[int, Mapping[str, Any]]],
    columns: Mapping[str, str],
    metrics: tuple[str, ...],
    row_names: RowNames,
) -> list[Source]:
    """Return what the rows of a table hold, as `read_table`.

    Args:
        path: path for messages.
        name: name of the source where no column names models.
        names: names of the columns.
        numbered_rows: rows, each with its number.
        columns: column of each role that is named.
        metrics: columns of scores; found where there are none.
        row_names: names of the rows of all sources.
    """
    roles, metric_names = _roles(path, names, columns, metrics)
    if "group" in roles and "row" not in roles:
        raise DataError(f"{path} has groups and no column that names rows; use --columns row=NAME.")
    groups: dict[tuple[str, str, str | None], _Group] = {}
    seed_column = roles.get("fold", roles.get("seed"))
    by_line = "row" not in roles and seed_column is None
    for number, row in numbered_rows:
        seed = f"line {number}" if by_line else _label(row, seed_column)
        key = (str(row[roles["model"]]) if "model" in roles else name, _task(row, roles), seed)
        group = groups.setdefault(key, _Group())
        if "row" in roles:
            group.rows.append(row_names.number(row[roles["row"]]))
        if "group" in roles:
            row_names.put_into_group(key[1], group.rows[-1], row[roles["group"]])
        where = f"{path}, row {number},"
        for metric, value in _scores(row, roles, metric_names, where):
            group.scores.setdefault(metric, array("d")).append(value)
    if not groups:
        raise DataError(f"{path} has no rows; give one for each score.")
    sources: dict[str, Source] = {}
    for (model, task, seed), group in groups.items():
        scores = {metric: np.frombuffer(values) for metric, values in group.scores.items()}
        several = len(next(iter(scores.values())))
        if "row" not in roles and several > 1:
            raise DataError(
                f"{path} has {several:,} lines of {seed_column} {seed} and no column that names "
                "rows; name it with --columns row=NAME."
            )
        rows = np.frombuffer(group.rows, dtype=np.int64) if "row" in roles else None
        source = sources.setdefault(
            model,
            Source(name=model, path=path, kind=TABLE, runs=[], folds="fold" in roles),
        )
        run = Run(scores=scores, task=task, seed=None if by_line else seed, rows=rows)
        source.runs.append(run)
    return list(sources.values())


def _label(row: Mapping[str, Any], column: str | None) -> str | None:
    return None if column is None else str(row[column])


def _task(row: Mapping[str, Any], roles: Mapping[str, str]) -> str:
    return str(row[roles["task"]]) if "task" in roles else ""


def _scores(
    row: Mapping[str, Any], roles: Mapping[str, str], metrics: list[str], where: str
) -> Iterator[tuple[str, float]]:
    if not metrics:
        answer, label = (plain_text(row.get(roles[role])).strip() for role in ("answer", "label"))
        if not label:
            raise DataError(f"{where} has no label; leave the row out of every run.")
        yield "accuracy", float(answer == label)
    for metric in metrics:
        yield metric, number_of(row.get(metric), where)


def read_column(path: Path, name: str) -> list[Source]:
    """Return the numbers of a file, each the score of one run whose seed is not known."""
    runs = [
        Run(scores={"score": np.array([number_of(line, f"{path}, line {number},")])})
        for number, line in enumerate(decode_lines(lines(path, keep_ends=True), str(path)), 1)
        if line.strip()
    ]
    return [Source(name=name, path=str(path), kind=COLUMN, runs=runs)]


def kind_of_text(path: Path) -> str | None:
    """Return whether a text file is a table or a column of numbers; None for anything else."""
    first = next(decode_lines(lines(path, keep_ends=True), str(path)), "").strip()
    try:
        float(first)
    except ValueError:
        pass
    else:
        return COLUMN
    if kind_of_file(path) or path.suffix.lower() == ".parquet":
        return TABLE
    return TABLE if len(first.split(find_delimiter(first))) > 1 else None
