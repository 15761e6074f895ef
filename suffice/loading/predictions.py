"""Batch prediction of a trained model on tables, lines and images (`suffice predict`)."""

from __future__ import annotations

import contextlib
import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import tee
from pathlib import Path
from typing import Any

from suffice.data.files import OPENERS
from suffice.data.images import ENDINGS
from suffice.data.rows import (
    TABLE_FILES,
    UTF_8,
    kind_of_file,
    plain_text,
    read_rows,
    read_stream,
    refuse_columns,
)
from suffice.errors import ConfigError, DataError
from suffice.loading.loading import (
    BATCH,
    ImageClassifier,
    LanguageModel,
    Loaded,
    Prediction,
    TextClassifier,
    TextTranslator,
)
from suffice.utils.files import replacing

STREAM = "-"
ANSWER, SHARE = "prediction", "probability"
MAX_BATCH_SIZE = 1 << 20  # rows of a batch
MAX_PROBABILITY_COLUMNS = 12  # classes whose probabilities get a column each

Row = dict[str, Any]
Write = Callable[[Row, Row], None]  # a row of the input, and the columns of its answer


@dataclass(frozen=True, kw_only=True)
class PredictionRequest:
    """What is to be answered, and where the answers go."""

    names: tuple[str, ...] = ()  # tables, images and folders of images; "-" is standard input
    text: str | None = None  # one text, instead
    column: str | None = None  # column of texts in tables; None uses that of the training
    form: str = "text"  # format of standard input: "text" (one a line), "csv" or "jsonl"
    encoding: str = UTF_8  # encoding of tables and of standard input
    batch: int | None = None  # rows computed at once; None: 64, or 1 where lines come one by one
    out: Path | None = None  # file of the answers; None writes to standard output

    def __post_init__(self) -> None:
        if bool(self.names) == (self.text is not None):
            raise ConfigError("give files, - for standard input, or --text; one of the three.")
        if self.batch is not None and not 1 <= self.batch <= MAX_BATCH_SIZE:
            raise ConfigError(f"--batch {self.batch}: give 1 to {MAX_BATCH_SIZE:,} rows.")
        out = self.out
        if out and (out.suffix in OPENERS or kind_of_file(out) not in ("separated", "json")):
            raise ConfigError(f"--out {out}: name a file that ends in .csv or .jsonl.")

    @property
    def size(self) -> int:
        """Rows computed at once."""
        return self.batch or (1 if STREAM in self.names else BATCH)

    @property
    def wants_json(self) -> bool:
        """Whether answers are lines of JSON, as the input is."""
        if self.out is not None:
            return kind_of_file(self.out) == "json"
        return any(kind_of_file(name) == "json" for name in self.names) or (
            STREAM in self.names and self.form == "jsonl"
        )


def answer(model: Loaded, request: PredictionRequest, *, as_json: bool = False) -> None:
    """Write every input with the model's answer, in batches."""
    if isinstance(model, LanguageModel):
        raise ConfigError(
            "this is a language model, which has no classes; write text with `suffice generate`."
        )
    with _opened(request.out) as stream:
        write = _writer(stream, as_json=as_json or request.wants_json)
        if isinstance(model, TextTranslator):
            _translate(model, request, write)
        elif isinstance(model, ImageClassifier):
            _images(model, request, write)
        else:
            _texts(model, request, write)


@contextlib.contextmanager
def _opened(out: Path | None) -> Iterator[Any]:
    if out is None:
        yield sys.stdout
        return
    try:
        with replacing(out) as part, part.open("w", encoding="utf-8", newline="") as stream:
            yield stream
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"cannot write {out} ({reason}); give another --out.") from error


def _writer(stream: Any, *, as_json: bool) -> Write:
    table: list[Any] = []

    def write_csv(row: Row) -> None:
        if not table:
            table.append(csv.DictWriter(stream, list(row), lineterminator="\n"))
            table[0].writeheader()
        if added := sorted(row.keys() - set(table[0].fieldnames)):
            raise DataError(
                f"a row has {added[0]!r}, which the first row lacks, and a table of CSV has the "
                "columns of its first row; write lines of JSON (--json, or --out NAME.jsonl)."
            )
        table[0].writerow({name: plain_text(row.get(name)) for name in table[0].fieldnames})
        stream.flush()

    def write_json(row: Row) -> None:
        stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        stream.flush()

    def write(row: Row, answer: Row) -> None:
        if taken := sorted(row.keys() & answer.keys()):
            raise DataError(
                f"the input has a column {taken[0]!r} already, which the answer would replace; "
                "rename or remove it."
            )
        (write_json if as_json else write_csv)(row | answer)

    return write


def _texts(model: TextClassifier, request: PredictionRequest, write: Write) -> None:
    trained = model.facts.get("columns") or [None, None]
    tally = Tally(label=trained[1], classes=frozenset(model.classes))
    for rows, texts in _tables(request, trained[0]):
        texts, read = tee(texts)
        answers = model.stream(read, batch_size=request.size)
        for row, text, prediction in zip(rows, texts, answers, strict=True):
            tally.add(row, prediction)
            tally.empty += not text.strip()
            write(row, _columns(prediction))
    tally.print()


def _translate(model: TextTranslator, request: PredictionRequest, write: Write) -> None:
    for rows, texts in _tables(request, None):
        answers = model.translate(texts, batch_size=request.size)
        for row, translation in zip(rows, answers, strict=True):
            write(row, {"translation": translation})


def _images(model: ImageClassifier, request: PredictionRequest, write: Write) -> None:
    if request.text is not None or STREAM in request.names:
        raise ConfigError(
            f"the model reads images; give files that end in {', '.join(ENDINGS)}, or a folder."
        )
    paths = [path for name in request.names for path in _image_files(Path(name))]
    answers = model.stream(paths, batch_size=request.size)
    for path, prediction in zip(paths, answers, strict=True):
        write({"file": str(path)}, _columns(prediction))


def _image_files(path: Path) -> list[Path]:
    if not path.is_dir():
        if path.suffix.lower() not in ENDINGS:
            raise ConfigError(
                f"the model reads images, and {path} does not end in {', '.join(ENDINGS)}."
            )
        return [path]
    files = sorted(each for each in path.rglob("*") if each.suffix.lower() in ENDINGS)
    if not files:
        raise DataError(f"{path} holds no images that end in {', '.join(ENDINGS)}.")
    return files


def _columns(prediction: Prediction) -> Row:
    shares = {name: round(share, 6) for name, share in prediction.probabilities.items()}
    row: Row = {ANSWER: prediction.label, SHARE: round(prediction.probability, 6)}
    if len(shares) <= MAX_PROBABILITY_COLUMNS:
        row |= {f"p({name})": share for name, share in shares.items()}
    return row


def _tables(
    request: PredictionRequest, trained: str | None
) -> Iterator[tuple[Iterable[Row], Iterable[str]]]:
    if request.text is not None:
        yield [{"text": request.text}], [request.text]
        return
    for name in request.names:
        if name == STREAM:
            there, rows = read_stream(sys.stdin.buffer, request.form, request.encoding)
        elif kind_of_file(name):
            there, rows = read_rows(name, request.encoding)
        else:
            raise ConfigError(
                f"the model reads texts, and {name} is not {TABLE_FILES}; give one, or "
                "lines of standard input with -."
            )
        if double := next((column for column in there if there.count(column) > 1), None):
            raise DataError(f"{name} has two columns {double!r}; rename one.")
        where = _column(name, there, request.column, trained)
        ours, theirs = tee(row for _, row in rows)
        yield ours, (plain_text(row.get(where)) for row in theirs)


def _column(name: str, there: list[str], chosen: str | None, trained: str | None) -> str:
    if chosen is None and len(there) == 1:
        return there[0]
    for column in [chosen] if chosen is not None else [trained, "text"]:
        if column is not None and column in there:
            return column
    hint = "name that of the texts with --column NAME."
    return refuse_columns(name, there, [chosen or trained or "text"], hint=hint)


@dataclass
class Tally:
    """How many rows were answered as their column of classes says."""

    label: str | None
    classes: frozenset[str]
    rows: int = 0
    right: int = 0
    unknown: int = 0  # rows of a class that the model was not trained on
    empty: int = 0  # rows without a text

    def add(self, row: Row, prediction: Prediction) -> None:
        """Count a row whose column of classes is filled."""
        known = plain_text(row.get(self.label)).strip() if self.label is not None else ""
        if known in self.classes:
            self.rows += 1
            self.right += prediction.label == known
        elif known:
            self.unknown += 1

    def print(self) -> None:
        """Print the accuracy, if any class was known, and what it leaves open."""
        if self.rows:
            share = self.right / self.rows
            sys.stderr.write(
                f"accuracy: {share:.1%} of {self.rows:,} rows with a class in {self.label!r}; it "
                "may include rows the model was trained on\n"
            )
        if self.unknown:
            sys.stderr.write(f"not counted: {self.unknown:,} rows of classes the model lacks\n")
        if self.empty:
            sys.stderr.write(f"without a text: {self.empty:,} rows, predicted all the same\n")
