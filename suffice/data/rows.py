"""Readers of table rows: CSV, TSV, JSON lines (plain, .gz or .xz), Parquet and `datasets`.

Delimiters are read off the first line, and names of columns may hold commas. By the csv module:
pandas fills a short row with empty cells, and takes the first cell of a long one for its index.
"""

from __future__ import annotations

import codecs
import csv
import json
import shlex
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from suffice.data.files import FORM, OPENERS, is_saved_dataset, lines, rows_of_dataset
from suffice.errors import ConfigError, DataError, installed_for

TABLE_SUFFIXES = (".csv", ".tsv", ".txt")
JSON_LINES = (".jsonl", ".json", ".ndjson")
PARQUET, UTF_8 = ".parquet", "utf-8"
SPREADSHEETS = (".xlsx", ".xls")
TABLE_FILES = (
    "a .csv, .tsv or .jsonl, plain, .gz or .xz, a .parquet, a folder of datasets.save_to_disk, or "
    f"{FORM}"
)
DELIMITERS = ",;\t|"
MAX_NAMED_COLUMNS = 12  # columns that a message names

Row = dict[str, Any]


def kind_of_file(path: Path | str) -> str:
    """Return "separated", "json", "parquet" or "datasets" by a name, "" for any other.

    Example:
        >>> kind_of_file("reviews.csv.gz"), kind_of_file("a.jsonl"), kind_of_file("a.png")
        ('separated', 'json', '')
    """
    if is_saved_dataset(path):
        return "datasets"
    place = Path(path)
    if place.suffix.lower() == PARQUET:
        return "parquet"
    ending = (place.with_suffix("") if place.suffix in OPENERS else place).suffix.lower()
    if ending in TABLE_SUFFIXES:
        return "separated"
    return "json" if ending in JSON_LINES else ""


def read_rows(path: str, encoding: str = UTF_8) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    """Return the names of a table's columns, and its rows with their numbers from 1.

    The columns of lines of JSON are those of the first object; values of JSON stay as they are,
    those of CSV are texts.

    Args:
        path: a .csv, .tsv or .jsonl, plain, .gz or .xz; a .parquet; a folder that
            `datasets.save_to_disk` wrote; or a data set of the hub, see `rows_of_dataset`.
        encoding: encoding of a CSV, TSV or JSON lines, by a name that Python knows.
    """
    kind = kind_of_file(path)
    if kind in BINARY:
        if encoding != UTF_8:
            raise ConfigError(f"--encoding {encoding}: {path} says itself how texts are encoded.")
        return BINARY[kind](path)
    if not kind:
        convert = ""
        if Path(path).suffix.lower() in SPREADSHEETS:
            code = f"import pandas; pandas.read_excel({path!r}).to_csv('table.csv', index=False)"
            convert = f" Convert it: python -c {shlex.quote(code)}"
        raise ConfigError(f"{path} is not {TABLE_FILES}.{convert}")
    decoded = decode_lines(lines(path, keep_ends=True), path, encoding)
    return read_separated(decoded, path) if kind == "separated" else read_json_lines(decoded, path)


def check_encoding(encoding: str) -> None:
    """Raise ConfigError unless Python can read texts in an encoding of that name."""
    try:
        "".encode(encoding)
    except LookupError as error:
        raise ConfigError(
            f"--encoding {encoding!r:.40} is not the name of an encoding; give one such as utf-8, "
            "latin-1, cp1252, utf-16, gb18030 or shift_jis."
        ) from error


def decode_lines(content: Iterable[bytes], name: str, encoding: str = UTF_8) -> Iterator[str]:
    """Yield decoded lines with an end each, which a text in quotes may hold."""
    check_encoding(encoding)
    decoder = codecs.getincrementaldecoder("utf-8-sig" if encoding == UTF_8 else encoding)()
    rest, line, number = "", b"", 0
    try:
        for number, line in enumerate(content, 1):  # noqa: B007 - which line an error is in
            if number == 1 and encoding == UTF_8 and b"\0" in line:  # UTF-16 without its mark
                raise UnicodeDecodeError(UTF_8, line, line.index(b"\0"), len(line), "a zero byte")
            *whole, rest = (rest + decoder.decode(line)).split("\n")
            yield from (f"{text.rstrip(chr(13))}\n" for text in whole)
        rest += decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        wide = line.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in line
        advice = "save the table as UTF-8, or name its encoding with --encoding, such as "
        advice += "utf-16" if wide else "latin-1"
        what = "UTF-8" if encoding == UTF_8 else f"in the encoding {encoding}"
        raise DataError(f"{name}, line {number}, is not {what}; {advice}.") from error
    if rest:
        yield f"{rest.rstrip(chr(13))}\n"


def read_separated(
    content: Iterator[str], name: str
) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    """Return the columns and the rows of a table whose first line names the columns.

    A row with more or fewer cells than there are columns is a DataError: its cells may be those of
    other columns.
    """
    first = next(content, "")
    delimiter = find_delimiter(first)

    # strict: a stray quote would swallow all rows up to the next one
    reader = csv.DictReader(chain([first], content), delimiter=delimiter, strict=True)

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
    with installed_for(f"{path}: reading Parquet", "parquet"):
        parquet = import_module("pyarrow.parquet")
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


BINARY = {"parquet": read_parquet, "datasets": rows_of_dataset}
"""Readers of files that say themselves how their texts are encoded."""


def find_delimiter(header: str) -> str:
    """Return what separates the columns that a line names: the most frequent of , ; tab and |.

    Example:
        >>> find_delimiter("text;label, of two"), find_delimiter("text")
        (';', ',')
    """

    def columns(delimiter: str) -> tuple[int, int]:
        try:
            count = len(next(csv.reader([header], delimiter=delimiter, strict=True)))
        except (csv.Error, StopIteration):
            count = 0
        # "text;label, of two" has two columns either way: words are separated by ", "
        return count, -header.count(f"{delimiter} ")

    return max(DELIMITERS, key=columns)


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

    if first is None:
        return [], iterator
    return list(first[1]), chain([first], iterator)


def plain_text(value: Any) -> str:
    """Return a value of a column as text, numbers as JSON has them; None, NaN and NA are "".

    Example:
        >>> plain_text(float("nan")), plain_text(None), plain_text("a"), plain_text(3)
        ('', '', 'a', '3')
    """
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # of pandas
        return ""
    value = value.item() if hasattr(value, "item") else value  # of numpy
    if isinstance(value, str):
        return value
    missing = value != value  # noqa: PLR0124
    return "" if missing else json.dumps(value, ensure_ascii=False, default=str)


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
    lacking = " or ".join(repr(name) for name in wanted if name not in names)
    shown = [name if name and name == name.strip() else repr(name) for name in names]
    only = f"only {', '.join(shown[:MAX_NAMED_COLUMNS])}{more}" if names else "nor any other"
    raise DataError(f"{path} has no column {lacking}, {only}; {hint}")


def read_stream(
    stream: Iterable[bytes], form: str, encoding: str = UTF_8
) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    """Return the columns and rows of a stream of bytes, as they come.

    Args:
        form: "csv", "jsonl" or "text", of which each line is a row with the one column "text".
    """
    readers: dict[str, Callable[..., Any]] = {"csv": read_separated, "jsonl": read_json_lines}
    content = decode_lines(stream, "standard input", encoding)
    if form in readers:
        return readers[form](content, "standard input")
    if form != "text":
        raise ConfigError(f"--as {form}: give csv, jsonl or text.")
    return ["text"], ((n, {"text": line.rstrip("\n")}) for n, line in enumerate(content, 1))
