"""`suffice.compare_data`: the comparison of mechanisms on texts and classes that Python holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from suffice.comparison.compare import OwnComparison, compare
from suffice.comparison.metrics import METRICS, Margin
from suffice.comparison.plan import MARGIN, Plan, check_several
from suffice.data.rows import kind_of_file, plain_text, split_columns
from suffice.data.table import COLUMNS
from suffice.errors import ConfigError, DataError, check_known
from suffice.train.recipes import recipe
from suffice.train.recipes.own_data import TABLE, of_user, usual_folds, with_settings
from suffice.utils.files import write_atomic

DATA = "data.jsonl"  # in the folder of a comparison: the rows that Python held


def compare_data(
    data: Any,
    mechanisms: Sequence[str],
    *,
    columns: str = COLUMNS,
    groups: str | None = None,
    seeds: int = 5,
    folds: int | None = None,
    margin: float | str = MARGIN,
    metric: str = "accuracy",
    baseline: str | None = None,
    settings: Mapping[str, Any] | None = None,
    tokenizer: str | None = None,
    drop_missing: bool = False,
    out: Path | str = "runs/data",
    device: str = "cpu",
    quiet: bool = False,
    anyway: bool = False,
) -> OwnComparison:
    """Train mechanisms side by side on texts and classes, and say which cheaper one suffices.

    It is `suffice compare --data` for data in memory. They are written to `out`, so run the script
    again, and it goes on where it was stopped; `suffice.load(out)` opens the best model.

    Args:
        data: a DataFrame of pandas, a `datasets.Dataset`, a dictionary of columns, a pair of texts
            and classes (lists or arrays), or what `--data` takes: the path of a table, or
            "hf:ORG/NAME".
        mechanisms: names such as "standard" and "efficient", see `suffice list`.
        columns: the names of the column of texts and of that of classes, with a comma between; a
            pair has text and label.
        groups: column of what rows belong to, such as a customer: rows of one group are in one
            part, or in one fold.
        seeds: trainings of each mechanism, 0 .. seeds - 1.
        folds: parts of the rows, each tested by a seed that trains on the others; None takes as
            many as seeds for tables below 20,000 rows, 0 tests all seeds on one part.
        margin: loss of the metric with which a mechanism still suffices: a fraction, or "1 point".
        metric: score that the verdict is about, as in `suffice compare --metric`.
        baseline: mechanism that the others are compared with; the first by default.
        settings: other sizes and hyper-parameters, such as {"length": 128, "epochs": 3}.
        tokenizer: "words" (default), "characters", "bpe", or the folder of a tokenizer.
        drop_missing: leave out rows without a text or a class; without it they are refused.
        out: folder of the results.
        device: "cpu" or "cuda".
        quiet: show no progress.
        anyway: go on where a bag of words is as good as the first training.

    Raises:
        ConfigError: for a setting that is not legal, or a folder of another comparison.
        DataError: if rows lack a text or a class, or there are too few.
    """
    folder, named = Path(out), tuple(mechanisms)
    check_known("metric", metric, METRICS)
    margin, _ = Margin.of(margin).for_metric(metric, METRICS[metric].kind)
    path = _path_of(data, columns, groups, folder)
    parts = {"groups": groups, "drop_missing": drop_missing or None, "tokenizer": tokenizer}
    chosen = with_settings(of_user(recipe(TABLE), path, columns, **parts), settings or {})
    plan = Plan(
        recipe=chosen,
        mechanisms=named,
        heads=(chosen.num_heads,),
        seeds=seeds,
        baseline=baseline or next(iter(named), ""),
        margin=margin,
        metric=metric,
        device=device,
        folds=usual_folds(chosen, seeds) if folds is None else folds or None,
    )
    check_several(named)
    results = compare(
        plan,
        folder,
        console=Console(stderr=True),
        resume=True,
        quiet=quiet,
        anyway=anyway,
        command=f"suffice.compare_data({Path(path).name!r}, ...)",
    )
    if results is None:
        raise ConfigError("compare_data runs in one process; use `suffice compare` in several.")
    return OwnComparison.of(results, folder)


def _path_of(data: Any, columns: str, groups: str | None, folder: Path) -> str:
    if isinstance(data, str | Path):
        if not kind_of_file(data):
            raise ConfigError(f"{str(data)!r:.80} is not a table; give its path, or a DataFrame.")
        return str(data)
    path = folder / DATA
    content = "".join(
        json.dumps(row, ensure_ascii=False) + "\n" for row in _rows_in_memory(data, columns, groups)
    )
    if path.exists() and path.read_text("utf-8") != content:
        raise ConfigError(
            f"{folder} holds a comparison on other data; give another folder with out=."
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content)
    return str(path)


def _rows_in_memory(data: Any, columns: str, groups: str | None) -> Iterator[dict[str, str]]:
    if isinstance(data, tuple):
        if len(data) != 2:  # noqa: PLR2004
            raise ConfigError(f"a tuple of {len(data)}; give texts and classes, two of one length.")
        data, columns = dict(zip(COLUMNS.split(","), data, strict=True)), COLUMNS
    there = list(getattr(data, "columns", getattr(data, "column_names", data)))
    named = split_columns(columns, there)
    if named is None or not set(named) <= set(there):
        raise DataError(
            f"the data have the columns {', '.join(map(str, there))}; name that of the texts and "
            'that of the classes, such as columns="review,stars".'
        )
    if groups is not None and groups not in there:
        raise DataError(f"the data have no column {groups!r} of groups; name one of {there}.")
    texts, labels = (list(data[name]) for name in named)
    names = getattr(getattr(data, "features", {}).get(named[1]), "names", None)  # of datasets
    if len(texts) != len(labels):
        raise DataError(f"{len(texts):,} texts and {len(labels):,} classes; give one for each.")
    of = [{}] * len(texts) if groups is None else [{groups: plain_text(g)} for g in data[groups]]
    for text, label, group in zip(texts, labels, of, strict=True):
        label_name = names[label] if names and label >= 0 else None if names else label
        yield {named[0]: plain_text(text), named[1]: plain_text(label_name), **group}
