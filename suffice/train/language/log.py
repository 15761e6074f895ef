"""The log of a training: lines of JSON, TensorBoard events, and the records behind them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suffice.errors import CheckpointError, ConfigError
from suffice.files import replacing


class Log:
    """Appends records to a file; a resumed run continues where its checkpoint was made.

    Args:
        path: of the lines; None writes none.
        tensorboard: folder of TensorBoard's events; None writes none.
        step: of the checkpoint; lines of later steps are removed, 0 begins anew.

    Raises:
        ConfigError: if TensorBoard is wanted and not installed.
        CheckpointError: if the log cannot be written.
    """

    def __init__(self, path: Path | None, tensorboard: Path | None, *, step: int) -> None:
        self._path = path
        self._board = None if tensorboard is None else _summary_writer(tensorboard, step)
        if path is not None:
            with _writing(path):
                earlier = [line for line in _lines(path) if _step(line) <= step] if step else []
                with replacing(path) as temporary:
                    temporary.write_text("".join(earlier), encoding="ascii", newline="\n")

    def write(self, record: dict[str, Any]) -> None:
        """Append a record; its numbers, except the step, are TensorBoard's scalars.

        Raises:
            CheckpointError: if the disk refuses.
        """
        if self._path is not None:
            line = json.dumps(record) + "\n"
            with _writing(self._path), self._path.open("a", encoding="ascii", newline="\n") as file:
                file.write(line)
        if self._board is not None:
            for name, value in record.items():
                if name != "step":
                    self._board.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Flush what TensorBoard still holds."""
        if self._board is not None:
            self._board.close()


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"cannot write the log {path} ({error.strerror or error}); free space or give a folder "
            "that can be written."
        ) from error


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    return path.read_text("utf-8", errors="replace").splitlines(keepends=True)


def _step(line: str) -> float:
    """Return the step of a line; infinity for one that was cut short."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return float("inf")


def _summary_writer(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            "TensorBoard is not installed; run pip install 'suffice[tensorboard]', or leave its "
            "events out: the log has the same numbers."
        ) from error
    return SummaryWriter(str(folder), purge_step=step + 1 if step else None)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A validation.

    Args:
        step: optimiser steps that were done.
        tokens: targets that were learned from by then.
        train_loss: mean over the targets since the last validation, as trained on; nats.
        validation_loss: mean over the validation targets; nats.
        learning_rate: of the last step.
        seconds: of training by then, validations not counted.
    """

    step: int
    tokens: int
    train_loss: float
    validation_loss: float
    learning_rate: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LMRun:
    """A finished training.

    Args:
        measured: every validation.
        best_step: steps after which the validation loss was lowest; the model has these weights.
        out_of_time: whether `max_minutes` ended the run before its last step.
    """

    measured: tuple[Measured, ...]
    best_step: int
    out_of_time: bool

    @property
    def best(self) -> Measured:
        """The validation with the lowest loss."""
        return next(record for record in self.measured if record.step == self.best_step)
