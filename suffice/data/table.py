"""A table of your own: texts and the class of each, as CSV, TSV or lines of JSON."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

from suffice.data.dataset import Dataset, check_counts
from suffice.data.files import OPENERS, lines
from suffice.data.reviews import check_vocabulary_size, text_task
from suffice.errors import ConfigError, DataError

COLUMNS = "text,label"
SEPARATORS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".json", ".ndjson")
LEAST = 3  # rows of a class on average: a price or a name is none
SHOWN = 12  # columns that a message names

Row = tuple[str, str]


def table(
    *,
    path: str | None = None,
    columns: str = COLUMNS,
    length: int = 64,
    vocabulary_size: int = 20_000,
    rows: int | None = None,
) -> Dataset:
    """Load a table that has a column of texts and a column of classes.

    Rows are cut and split as those of `amazon`: the last words of each text, a tenth of the rows
    for the test and a tenth for validation, by the text alone. Classes are numbers in their order,
    else words in alphabetical order. Rows without a text are skipped.

    Args:
        path: a .csv or .tsv whose first row names the columns, or a .jsonl of objects; plain, .gz
            or .xz.
        columns: the names of the column of texts and of that of classes, with a comma between.
        length: tokens of each row, >= 1.
        vocabulary_size: the most ids there may be, >= 4; rarer words become unknown.
        rows: training rows that are kept at most; None = all.

    Shapes:
        inputs: int64 [N, length]; valid: bool [N, length], False at padding in front
    """
    check_counts("table", length=length, rows=rows)
    check_vocabulary_size(vocabulary_size)
    pairs = list(_rows(path, columns))
    names = _classes(pairs, str(path), columns)
    numbers = {name: number for number, name in enumerate(names)}
    return text_task(
        [(text, numbers[label]) for text, label in pairs],
        where=str(path),
        unit="row",
        name="table",
        title=f"{Path(str(path)).name}, {len(names)} classes",
        source=f"the file {path}",
        num_classes=len(names),
        length=length,
        vocabulary_size=vocabulary_size,
        rows=rows,
    )


def classes(path: str, columns: str = COLUMNS) -> list[str]:
    """Return the classes of a table, in the order of their numbers; errors as `table`."""
    return _classes(list(_rows(path, columns)), path, columns)


def _classes(pairs: list[Row], where: str, columns: str) -> list[str]:
    counts = Counter(label for _, label in pairs)
    label = columns.partition(",")[2].strip()
    if len(counts) < 2 or len(counts) * LEAST > len(pairs):
        raise DataError(
            f"{where}: column {label!r} holds {len(counts)} different values in {len(pairs)} rows "
            f"with a text; give two classes at least, and {LEAST} rows for each."
        )
    try:
        return sorted(counts, key=float)
    except ValueError:
        return sorted(counts)


def _rows(path: str | None, columns: str) -> Iterator[Row]:
    """Yield text and class of each row that has a text."""
    if path is None:
        raise ConfigError(
            "table: no file is given; name a .csv, .tsv or .jsonl of yours, on the command line by "
            "--data."
        )
    names = tuple(name.strip() for name in columns.split(","))
    if len(names) != 2 or not all(names):
        raise ConfigError(
            f"columns {columns!r}: name the column of texts and that of classes, such as {COLUMNS}."
        )
    place = Path(path)
    kind = (place.with_suffix("") if place.suffix in OPENERS else place).suffix.lower()
    read = _read_separated if kind in SEPARATORS else _read_json
    if kind not in SEPARATORS and kind not in JSON_LINES:
        raise ConfigError(f"table: {path} is no .csv, .tsv or .jsonl, plain, .gz or .xz.")
    for number, (text, label) in read(path, kind, *names):
        if not text.strip():
            continue
        if not label.strip():
            raise DataError(f"{path}, row {number}, has a text and no {names[1]}; give each one.")
        yield text, label.strip()


def _read_separated(path: str, kind: str, text: str, label: str) -> Iterator[tuple[int, Row]]:
    # strict: a stray quote would swallow all rows up to the next one
    reader = csv.DictReader(
        _decode_lines(path), delimiter=SEPARATORS[kind], restval="", strict=True
    )
    try:
        names = list(reader.fieldnames or ())
        if not {text, label} <= set(names):
            _refuse_columns(path, names, text, label)
        if repeated := [name for name in (text, label) if names.count(name) > 1]:
            raise DataError(f"{path} has several columns {repeated[0]!r}; name each but once.")
        for number, row in enumerate(reader, 1):
            yield number, (row[text], row[label])
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.reader.line_num}, cannot be read ({error}); a text with quotes, "
            "separators or several lines must be quoted, its own quotes doubled."
        ) from error


def _read_json(path: str, _: str, text: str, label: str) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(_decode_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, parse_constant=lambda _: None)  # NaN is a missing value
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}, is not JSON ({error!s:.200}).") from error
        if not isinstance(row, dict) or not {text, label} <= set(row):
            _refuse_columns(path, row if isinstance(row, dict) else (), text, label)
        values = ("" if value is None else value for value in (row[text], row[label]))
        yield number, tuple(v if isinstance(v, str) else json.dumps(v) for v in values)


def _decode_lines(path: str) -> Iterator[str]:
    """Yield the lines with an end each, which a text in quotes may hold."""
    for number, line in enumerate(lines(path), 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8") + "\n"
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}, line {number}, is not UTF-8; save the table in that encoding."
            ) from error


def _refuse_columns(path: str, there: Iterable[str], text: str, label: str) -> NoReturn:
    names = [str(name) for name in there]
    more = ", ..." if len(names) > SHOWN else ""
    raise DataError(
        f"{path} has no columns {text!r} and {label!r} but {', '.join(names[:SHOWN]) or 'none'}"
        f"{more}; name that of the texts and that of the classes, on the command line by "
        "--columns TEXT,LABEL."
    )
