"""Readers of table rows: CSV, TSV, JSON lines (plain, .gz or .xz) and Parquet.

Delimiters are read off the first line, and names of columns may hold commas.
"""

from __future__ import annotations

import csv
import json
import shlex
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from suffice.data.files import OPENERS, lines
from suffice.errors import ConfigError, DataError, install_line

TABLE_SUFFIXES = (".csv", ".tsv", ".txt")
JSON_LINES = (".jsonl", ".json", ".ndjson")
PARQUET = ".parquet"
SPREADSHEETS = (".xlsx", ".xls")
TABLE_FILES = "a .csv, .tsv or .jsonl, plain, .gz or .xz, or a .parquet"
DELIMITERS = ",;\t|"
MAX_NAMED_COLUMNS = 12  # columns that a message names

Row = dict[str, Any]


def kind_of_file(path: Path | str) -> str:
    """Return "separated", "json" or "parquet" by the ending of a name, "" for any other file.

    Example:
        >>> kind_of_file("reviews.csv.gz"), kind_of_file("a.jsonl"), kind_of_file("a.png")
        ('separated', 'json', '')
    """
    place = Path(path)
    if place.suffix.lower() == PARQUET:
        return "parquet"
    ending = (place.with_suffix("") if place.suffix in OPENERS else place).suffix.lower()
    if ending in TABLE_SUFFIXES:
        return "separated"
    return "json" if ending in JSON_LINES else ""


def read_rows(path: str) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    """Return the names of a table's columns, and its rows with their numbers from 1.

    The columns of lines of JSON are those of the first object; values of JSON stay as they are,
    those of CSV are texts.

    Raises:
        ConfigError: if the file's ending is not a table's.
        DataError: if the file cannot be read, is not UTF-8, or a row is malformed; the rows raise
            it when they come to it.
    """
    kind = kind_of_file(path)
    if kind == "parquet":
        return read_parquet(path)
    if not kind:
        convert = ""
        if Path(path).suffix.lower() in SPREADSHEETS:
            code = f"import pandas; pandas.read_excel({path!r}).to_csv('table.csv', index=False)"
            convert = f" Convert it: python -c {shlex.quote(code)}"
        raise ConfigError(f"{path} is not {TABLE_FILES}.{convert}")
    decoded = decode_lines(lines(path), path)
    return read_separated(decoded, path) if kind == "separated" else read_json_lines(decoded, path)


def decode_lines(content: Iterable[bytes], name: str) -> Iterator[str]:
    """Yield lines with an end each, which a text in quotes may hold."""
    for number, line in enumerate(content, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8") + "\n"
        except UnicodeDecodeError as error:
            encoding = "utf-16" if line.startswith((b"\xff\xfe", b"\xfe\xff")) else "latin1"
            raise DataError(
                f"{name}, line {number}, is not UTF-8. Save the table as UTF-8, or convert it (the "
                f"text of it, where it is compressed): iconv -f {encoding} -t utf-8 "
                f"{shlex.quote(name)} > utf8.csv"
            ) from error


def read_separated(
    content: Iterator[str], name: str
) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    """Return the columns and the rows of a table whose first line names the columns.

    A row with more or fewer cells than there are columns is a DataError: its cells may be those of
    other columns.
    """
    first = next(content, "")
    delimiter = find_delimiter(first)

    def all_lines() -> Iterator[str]:
        yield first
        yield from content

    # strict: a stray quote would swallow all rows up to the next one
    reader = csv.DictReader(all_lines(), delimiter=delimiter, strict=True)

    def rows() -> Iterator[tuple[int, Row]]:
        try:
            for number, row in enumerate(reader, 1):
                cells = sum(cell is not None for column, cell in row.items() if column is not None)
                cells += len(row.get(None, ()))
                if cells != len(names):
                    raise DataError(
                        f"{name}, line {reader.reader.line_num}, has {cells} cells for "
                        f"{len(names)} columns; put cells that hold {delimiter!r} into quotes, and "
                        "give every row all columns."
                    )
                yield number, row
        except csv.Error as error:
            raise DataError(
                f"{name}, line {reader.reader.line_num}, cannot be read ({error}); a text with "
                "quotes, separators or several lines must be quoted, its own quotes doubled."
            ) from error

    try:
        names = list(reader.fieldnames or ())
    except csv.Error as error:
        raise DataError(f"{name}, line 1, does not name columns ({error}).") from error
    return names, rows()


def read_parquet(path: str) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    """Return the columns and the rows of a Parquet file, by pyarrow; NaN is a missing value."""
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(
            f"{path}: reading Parquet needs pyarrow, which is not installed: "
            f"{install_line('parquet')}."
        ) from error
    try:
        file = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path} ({error!s:.200}); give a whole file.") from error
    rows = (
        {name: value if value == value else None for name, value in row.items()}  # noqa: PLR0124
        for batch in file.iter_batches()
        for row in batch.to_pylist()
    )
    return list(file.schema_arrow.names), enumerate(rows, 1)


def find_delimiter(header: str) -> str:
    """Return what separates the columns that a line names: the most frequent of , ; tab and |.

    Example:
        >>> find_delimiter("text;label, of two"), find_delimiter("text")
        (';', ',')
    """
    counts = {}
    for delimiter in DELIMITERS:
        try:
            counts[delimiter] = len(next(csv.reader([header], delimiter=delimiter, strict=True)))
        except (csv.Error, StopIteration):
            counts[delimiter] = 0
    most = max(counts.values())
    ties = [delimiter for delimiter in DELIMITERS if counts[delimiter] == most]
    # "text;label, of two" has two columns either way: words are separated by ", ", columns are not
    return min(ties, key=lambda d: header.count(f"{d} "))


def read_json_lines(
    content: Iterator[str], name: str
) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    """Return the keys of the first object, and all objects, one a line."""

    def rows() -> Iterator[tuple[int, Row]]:
        for number, line in enumerate(content, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line, parse_constant=lambda _: None)  # NaN is a missing value
            except (ValueError, RecursionError) as error:
                raise DataError(f"{name}, line {number}, is not JSON ({error!s:.200}).") from error
            if not isinstance(row, dict):
                raise DataError(f"{name}, line {number}, is not a JSON object; give one a line.")
            yield number, row

    iterator = rows()
    first = next(iterator, None)

    def all_rows() -> Iterator[tuple[int, Row]]:
        if first is not None:
            yield first
        yield from iterator

    return [] if first is None else list(first[1]), all_rows()


def as_text(value: Any) -> str:
    """Return the value of a column as text: JSON's null is none, and numbers are as JSON has them.

    Example:
        >>> as_text(None), as_text(3), as_text("a")
        ('', '3', 'a')
    """
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def split_columns(columns: str, names: list[str]) -> tuple[str, str] | None:
    """Return the two columns that a text names, with a comma between; None if it does not.

    A name may hold commas itself, in quotes as CSV has them or, where the columns are there, bare.

    Example:
        >>> split_columns("review, long,stars", ["id", "review, long", "stars"])
        ('review, long', 'stars')
        >>> split_columns('"a,b",c', []), split_columns("a", ["a"])
        (('a,b', 'c'), None)
    """
    parts = columns.split(",")
    ways = [
        (",".join(parts[:cut]).strip(), ",".join(parts[cut:]).strip())
        for cut in range(1, len(parts))
    ]
    for way in ways:
        if set(way) <= set(names):
            return way
    try:
        quoted = next(csv.reader([columns], skipinitialspace=True, strict=True))
    except (csv.Error, StopIteration):
        return None
    named = tuple(name.strip() for name in quoted)
    return named if len(named) == 2 and all(named) else None  # type: ignore[return-value]


def refuse_columns(
    path: object, there: Iterable[str], wanted: Iterable[str], *, hint: str
) -> NoReturn:
    """Raise DataError for columns that a table does not have."""
    names = [str(name) for name in there]
    more = ", ..." if len(names) > MAX_NAMED_COLUMNS else ""
    raise DataError(
        f"{path} has no columns {' and '.join(map(repr, wanted))} but "
        f"{', '.join(names[:MAX_NAMED_COLUMNS]) or 'none'}{more}; {hint}"
    )


def read_stream(stream: Iterable[bytes], form: str) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    """Return the columns and rows of a stream of bytes, as they come.

    Args:
        stream: lines, such as `sys.stdin.buffer`.
        form: "csv", "jsonl" or "text", of which each line is a row with the one column "text".
    """
    readers: dict[str, Callable[..., Any]] = {"csv": read_separated, "jsonl": read_json_lines}
    content = decode_lines((line.rstrip(b"\r\n") for line in stream), "standard input")
    if form in readers:
        return readers[form](content, "standard input")
    if form != "text":
        raise ConfigError(f"--as {form}: give csv, jsonl or text.")
    return ["text"], ((n, {"text": line.rstrip("\n")}) for n, line in enumerate(content, 1))
