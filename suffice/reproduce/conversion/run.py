"""Making the rows of the table of conversions, one after the other, each kept when it is done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from suffice.convert import Certificate, Converted, convert
from suffice.convert.certificate import LossChange
from suffice.convert.held_out import change_of_loss, losses
from suffice.convert.text import LENGTH, TOGETHER
from suffice.errors import ConfigError
from suffice.heal import Healing, Texts, heal
from suffice.measure.decode import encode
from suffice.measure.machine import machine_facts, software_versions, source_commit
from suffice.measure.storage import write_atomic
from suffice.models import LM
from suffice.quantise.text import rows_of
from suffice.reproduce.conversion.rows import Row, place
from suffice.reproduce.conversion.subjects import SUBJECTS, Subject
from suffice.threads import threads
from suffice.train import show

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
    """Make the rows that the folder lacks; a healing that was interrupted goes on.

    Args:
        folder: working folder.
        keys: (subject, target) of each row.
        minutes: of healing in each.
        limit: minutes after which no row is begun.
        console: where progress is shown.
        quiet: whether to show nothing.
    """
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
        write_atomic(path, json.dumps(encode(asdict(row)), indent=1) + "\n")


class _Texts:
    """A subject with its texts as tokens.

    Args:
        name: of the subject.
        subject: the model and the documents.
        folder: working folder.
    """

    def __init__(self, name: str, subject: Subject, folder: Path) -> None:
        self.name, self.subject, self.folder = name, subject, folder
        source = subject.source
        self.lm: LM = source.model
        self.length = min(LENGTH, self.lm.config.length)
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
        return list(read.split(TOGETHER))

    def row(self, target: str, minutes: float, console: Console, quiet: bool) -> Row:
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
            return Row(**named, refused=str(error), **made_on)
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
        return Row(
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
        """Return the folder of a healing's checkpoints."""
        path = self.folder / "healing" / place(self.folder, self.name, target).stem
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _change(self, made: Converted) -> LossChange:
        after = self._losses(made.model)
        return change_of_loss(self.before, after, self.rows[:, 1:].numel())

    def _losses(self, lm: LM) -> list[float]:
        with torch.inference_mode():
            return losses(lm.eval(), self.rows)


def _sizes(
    certificate: Certificate, name: str, joined: Callable[[list[int]], int]
) -> tuple[int, int]:
    """Return a size of the layers before and after."""
    return tuple(
        joined([getattr(layer, f"{name}_{when}") for layer in certificate.layers])
        for when in ("before", "after")
    )
