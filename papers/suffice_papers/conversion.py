"""The table of conversions: held-out loss after each conversion of a model, and after healing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from suffice.comparison.report.sheet import Column, Sheet, sheet_of
from suffice.convert import Certificate, Converted, convert
from suffice.convert.calibration import BATCH_SIZE, ROW_LENGTH
from suffice.convert.certificate import LossChange, change_of_loss, row_losses
from suffice.convert.heal import Healing, Texts, heal
from suffice.convert.heal.text import halves
from suffice.convert.sources import Source, open_source
from suffice.data.files import cache, locate
from suffice.errors import ConfigError, DataError
from suffice.models import LM
from suffice.quantise.report import rows_of
from suffice.text import Documents, corpus
from suffice.text.documents import read_jsonl
from suffice.train import show
from suffice.utils.files import locked, read_record, write_json
from suffice.utils.machine import machine_facts, software_versions, source_commit
from suffice.utils.records import encode
from suffice.utils.torch_compat import threads
from suffice_papers.results import read_stored, write_published
from suffice_papers.rows import machine_line
from suffice_papers.sheets import csv_text, markdown

STORE = "conversion"
AGAIN = "Delete it to convert again."


@dataclass(frozen=True, kw_only=True)
class ConversionRow:
    """One conversion of one model."""

    subject: str  # name of the model
    target: str  # attention that it was converted to
    refused: str = ""  # reason why it could not be converted, or ""
    state: tuple[int, ...] = ()  # numbers in the KV cache per token and layer, before and after
    parameters: tuple[int, ...] = ()  # parameters of all attention layers, before and after
    # change from the model to the usual start; None where it was refused, as below
    naive: LossChange | None = None
    closed: LossChange | None = None  # change from the model to the closed form
    healed: LossChange | None = None  # change from the model to the one after healing
    # change from the model to the model after the same steps on the same rows
    control: LossChange | None = None
    against_control: LossChange | None = None  # change from the control to the healed one
    budget: float = 0.0  # minutes of healing that were allowed
    minutes: tuple[float, ...] = ()  # minutes of healing, and of the control
    steps: int = 0  # steps of healing, and of the control
    tokens: int = 0  # tokens that were learned from
    machine: dict[str, Any]  # facts about the machine
    versions: dict[str, Any]  # versions of the software
    commit: str | None  # commit of the source

    @property
    def key(self) -> tuple[str, str]:
        """Converted model and target mechanism."""
        return self.subject, self.target


@dataclass(frozen=True, kw_only=True)
class Conversions:
    """Finished rows."""

    rows: tuple[ConversionRow, ...] = ()


def place(folder: Path, subject: str, target: str) -> Path:
    """Return the file of a row in a working folder."""
    return folder / "rows" / f"{subject}-{re.sub(r'[^a-z0-9]+', '-', target)}.json"


def finished(folder: Path, keys: Sequence[tuple[str, str]]) -> Conversions:
    """Read the rows of a working folder, and of the published file where the folder has none."""
    rows = {row.key: row for row in published().rows}
    paths = {key: place(folder, *key) for key in keys}
    for key, path in paths.items():
        if path.exists():
            rows[key] = read_record(ConversionRow, path, advice=AGAIN)
    return Conversions(rows=tuple(rows[key] for key in keys if key in rows))


def published() -> Conversions:
    """Return the rows that come with the package; none if there are none."""
    return read_stored(Conversions, STORE)


def publish(conversions: Conversions) -> Path:
    """Write the rows that come with the package and return their file."""
    return write_published(STORE, asdict(conversions))


STORIES = "models/stories260K/stories260K.bin"
NOVELS = "lm/eltec_eng_novels/novels_60.jsonl.xz"
BEGIN = 0.1  # share of a book that is left out: its front matter
TURN = 10  # books after which the parts come round again
BOOKS = {"calibration": (0,), "validation": (1,), "held_out": (2, 3), "train": (4, 5, 6, 7, 8, 9)}
LONG = {"calibration": 16_000, "validation": 16_000, "held_out": 4_000, "train": 100_000}
CALIBRATED = 0.15  # of the training characters: the conversion reads these, the healing the rest


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A trained model and four texts, no two of which share a document or a stretch of one."""

    source: Source
    calibration: Documents
    train: Documents
    validation: Documents
    held_out: Documents


def stories260k(folder: Path) -> Subject:  # noqa: ARG001 - it lies among the data
    """Return the checkpoint of llama2.c on English novels, parted by book."""
    paths = [_located(path) for path in (STORIES, NOVELS)]
    parts = {
        name: Documents(name=f"novels, {name}", read=partial(_stretches, paths[1], name))
        for name in BOOKS
    }
    return Subject(source=open_source(paths[0]), **parts)


def shakespeare_char(folder: Path) -> Subject:
    """Return a model that `suffice train` left in the folder, on the text it was trained on."""
    place = folder / "shakespeare_char"
    if not place.is_dir():
        raise DataError(
            f"there is no model at {place}; train it first: suffice train --recipe "
            f"shakespeare_char --minutes 5 --out {place}"
        )
    text = corpus("tinyshakespeare")
    validation, held_out = halves(text.validation)
    first, rest = (
        Documents(name=f"Shakespeare, {name}", read=partial(_cut, text.train, later))
        for name, later in (("calibration", False), ("training", True))
    )
    return Subject(
        source=open_source(place),
        calibration=first,
        train=rest,
        validation=validation,
        held_out=held_out,
    )


SUBJECTS: dict[str, Callable[[Path], Subject]] = {
    "stories260K": stories260k,
    "shakespeare_char": shakespeare_char,
}
TARGETS = {
    "stories260K": ("gqa:2", "mqa", "optimised", "efficient", "latent:32", "window:64+sinks:4"),
    "shakespeare_char": (
        "gqa:2",
        "mqa",
        "optimised",
        "efficient",
        "latent:64",
        "window:16+sinks:4",
    ),
}


def wanted() -> list[tuple[str, str]]:
    """Return every (subject, target) of the table.

    Example:
        >>> wanted()[0]
        ('stories260K', 'gqa:2')
    """
    return [(name, target) for name in SUBJECTS for target in TARGETS[name]]


def _located(path: str) -> Path:
    located = locate(path)
    if located is None:
        raise DataError(
            f"there is no {cache() / path}; put it there, or below the folder that $SUFFICE_DATA "
            "names."
        )
    return located


def _stretches(path: Path, part: str) -> Iterator[str]:
    for number, text in enumerate(read_jsonl(path)):
        if number % TURN in BOOKS[part]:
            begin = int(len(text) * BEGIN)
            yield text[begin : begin + LONG[part]]


def _cut(documents: Documents, later: bool) -> Iterator[str]:
    for text in documents:
        at = int(len(text) * CALIBRATED)
        yield text[at:] if later else text[:at]


MINUTES = 5.0  # of healing
TOKENS = 1 << 15  # that a conversion reads


def run(
    folder: Path,
    keys: Sequence[tuple[str, str]],
    *,
    minutes: float = MINUTES,
    limit: float | None = None,
    console: Console,
    quiet: bool = False,
) -> None:
    """Make the rows that are missing in the folder; an interrupted healing is resumed."""
    with locked(folder):
        _run(folder, keys, minutes, limit, console, quiet)


def _run(
    folder: Path,
    keys: Sequence[tuple[str, str]],
    minutes: float,
    limit: float | None,
    console: Console,
    quiet: bool,
) -> None:
    began, opened = time.monotonic(), {}
    for subject, target in keys:
        path = place(folder, subject, target)
        if path.exists():
            continue
        if limit is not None and time.monotonic() - began >= 60 * limit:
            return
        if not quiet:
            console.print(f"{subject} to {target}", markup=False, highlight=False, soft_wrap=True)
        if subject not in opened:
            opened = {subject: _Texts.of(subject, folder)}
        row = opened[subject].row(target, minutes, console, quiet)
        write_json(path, encode(asdict(row)))


class _Texts:
    def __init__(self, name: str, subject: Subject, folder: Path) -> None:
        self.name, self.subject, self.folder = name, subject, folder
        source = subject.source
        self.lm: LM = source.model
        self.length = min(ROW_LENGTH, self.lm.config.length)
        documents = (subject.train, subject.validation, subject.held_out)
        self.texts = Texts.write(folder / "tokens" / name, documents, source.tokenizer)
        self.rows = self.texts.rows(self.length)
        self.before = self._losses(self.lm)

    @classmethod
    def of(cls, name: str, folder: Path) -> _Texts:
        return cls(name, SUBJECTS[name](folder), folder)

    def calibration(self) -> list[Tensor]:
        """Return batches of the text that conversions read."""
        tokenizer = self.subject.source.tokenizer
        read = rows_of(self.subject.calibration, tokenizer, length=self.length, tokens=TOKENS)
        return list(read.split(BATCH_SIZE))

    def row(self, target: str, minutes: float, console: Console, quiet: bool) -> ConversionRow:
        """Convert by the usual start and in closed form, heal the latter, and compare."""
        made_on = {
            "machine": {**machine_facts(), "threads": threads()},
            "versions": software_versions(),
            "commit": source_commit(),
        }
        named, read = {"subject": self.name, "target": target}, self.calibration()
        try:
            naive, closed = (
                convert(self.lm, target, calibration=read, naive=flag) for flag in (True, False)
            )
        except ConfigError as error:
            return ConversionRow(**named, refused=str(error), **made_on)
        with show(console, cells=3, quiet=quiet) as progress:
            report = heal(
                closed.model,
                self.lm,
                self.texts,
                healing=Healing(minutes=minutes, length=self.length),
                folder=self._place(target),
                resume=True,
                progress=progress,
            ).report
        control = report.stages[-1]
        first = report.stages[:-1]
        return ConversionRow(
            **named,
            state=_sizes(closed.certificate, "state", lambda sizes: sizes[0]),
            parameters=_sizes(closed.certificate, "parameters", sum),
            naive=self._change(naive),
            closed=report.converted,
            healed=report.healed,
            control=report.control,
            against_control=report.against_control,
            budget=minutes,
            minutes=(sum(stage.minutes for stage in first), control.minutes),
            steps=control.steps,
            tokens=control.tokens,
            **made_on,
        )

    def _place(self, target: str) -> Path:
        path = self.folder / "healing" / place(self.folder, self.name, target).stem
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _change(self, converted: Converted) -> LossChange:
        after = self._losses(converted.model)
        return change_of_loss(self.before, after, self.rows[:, 1:].numel())

    def _losses(self, lm: LM) -> list[float]:
        with torch.inference_mode():
            return row_losses(lm.eval(), self.rows)


def _sizes(
    certificate: Certificate, name: str, joined: Callable[[list[int]], int]
) -> tuple[int, int]:
    return tuple(
        joined([getattr(layer, f"{name}_{when}") for layer in certificate.layers])
        for when in ("before", "after")
    )


CHANGES = {
    "naive": "naive",
    "closed": "closed form",
    "healed": "healed",
    "control": "control",
    "against_control": "healed - control",
}
FIELDS = ("change", "low", "high", "before", "after", "rows", "tokens")


def _change_column(name: str, title: str) -> Column:
    def cell(row: ConversionRow) -> str:
        return _interval(getattr(row, name)) if not row.refused else "refused" * (name == "naive")

    return Column(title=title, cell=cell)


def _interval(change: LossChange | None) -> str:
    if change is None:
        return ""
    around = "" if change.low is None else f" ± {(change.high - change.low) / 2:.4f}"
    return f"{change.change:+.4f}{around}"


COLUMNS = (
    Column(title="model", cell=lambda row: row.subject),
    Column(title="attention", cell=lambda row: row.target, words=True),
    Column(
        title="KV cache/token",
        cell=lambda row: "" if row.refused else f"{row.state[0]} -> {row.state[1]}",
    ),
    *(_change_column(name, title) for name, title in CHANGES.items()),
    Column(title="steps", cell=lambda row: "" if row.refused else f"{row.steps:,}"),
)


def sheet(conversions: Conversions) -> Sheet:
    """Lay the table out."""
    return sheet_of(
        "conversion: held-out loss after conversion and after healing",
        COLUMNS,
        conversions.rows,
        group=lambda row: row.subject,
        caption=" ".join(notes(conversions)),
    )


def lines(conversions: Conversions) -> list[str]:
    """Return the table in Markdown, followed by its notes."""
    if not conversions.rows:
        return ["Nothing is published yet."]
    return [*markdown(sheet(conversions)), "", *notes(conversions)]


def notes(conversions: Conversions) -> list[str]:
    """Return how to read the table, how it was made, and which rows are missing."""
    sentences = [
        "Changes of the loss of the model as it was, nats per token of held-out text, ± half of "
        "the 95% interval, paired by row; the last difference is between two models with the same "
        "budget. Naive: means of heads, maps left out. Control: the unconverted model after as "
        "many steps on the same rows, by the same optimiser, with cross-entropy alone. "
        "A stage that no look at the validation text found better than its start is left out."
    ]
    for name in dict.fromkeys(row.subject for row in conversions.rows):
        rows = [row for row in conversions.rows if row.subject == name and row.closed is not None]
        if not rows:
            continue
        change = rows[0].closed
        sentences.append(
            f"{name}: loss {change.before:.4f}, {change.tokens:,} tokens in {change.rows} rows, "
            f"{_range([row.minutes[0] for row in rows])} minutes of healing in each row and "
            f"{_range([row.minutes[1] for row in rows])} of its control."
        )
    refused = [(row.subject, row.target, row.refused) for row in conversions.rows if row.refused]
    sentences += [f"{name} cannot become {target}: {reason}" for name, target, reason in refused]
    for line in dict.fromkeys(machine_line(row.machine) for row in conversions.rows):
        sentences.append(f"Ours on {line}.")
    present = {row.key for row in conversions.rows}
    if missing := [
        f"{name} to {target}" for name, target in wanted() if (name, target) not in present
    ]:
        sentences.append(f"Not run: {', '.join(missing)}.")
    return sentences


def to_csv(conversions: Conversions) -> str:
    """Write one line for each change."""
    records = [
        {
            "subject": row.subject,
            "target": row.target,
            "steps": row.steps,
            "minutes": row.minutes[0],
            "of": name,
            **{field: getattr(getattr(row, name), field) for field in FIELDS},
        }
        for row in conversions.rows
        for name in CHANGES
        if getattr(row, name) is not None
    ]
    return csv_text(("subject", "target", "steps", "minutes", "of", *FIELDS), records)


def _range(minutes: list[float]) -> str:
    least, most = f"{min(minutes):.1f}", f"{max(minutes):.1f}"
    return least if least == most else f"{least} to {most}"


__all__ = [
    "SUBJECTS",
    "ConversionRow",
    "Conversions",
    "Subject",
    "finished",
    "lines",
    "publish",
    "published",
    "run",
    "sheet",
    "to_csv",
    "wanted",
]
