"""The log of a training: lines of JSON, and TensorBoard's events where they are asked for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suffice.errors import CheckpointError, ConfigError
from suffice.files import replacing


class Log:
    """Writes a record at a time; a resumed run goes on where its checkpoint was made.

    Args:
        path: of the lines; None writes none.
        tensorboard: folder of TensorBoard's events; None writes none.
        step: of the checkpoint; lines of later steps are taken out, 0 begins anew.

    Raises:
        ConfigError: if TensorBoard is asked for and not installed.
        CheckpointError: if the log cannot be written.
    """

    def __init__(self, path: Path | None, tensorboard: Path | None, *, step: int) -> None:
        self._path = path
        self._board = None if tensorboard is None else _writer(tensorboard, step)
        if path is not None:
            kept = [line for line in _lines(path) if _step(line) <= step] if step else []
            with _told(path), replacing(path) as temporary:
                temporary.write_text("".join(kept), encoding="ascii", newline="\n")

    def write(self, record: dict[str, Any]) -> None:
        """Add a record; its numbers, but for the step, are TensorBoard's scalars.

        Raises:
            CheckpointError: if the disk refuses.
        """
        if self._path is not None:
            with _told(self._path), self._path.open("a", encoding="ascii", newline="\n") as file:
                file.write(json.dumps(record) + "\n")
        if self._board is not None:
            for name, value in record.items():
                if name != "step":
                    self._board.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Write what TensorBoard still holds."""
        if self._board is not None:
            self._board.close()


class _told:  # noqa: N801 - reads as a word in a with statement
    """Tell in a sentence what the disk refuses."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise CheckpointError(
                f"cannot write the log {self._path} ({error.strerror or error}); free space or "
                "give a folder that can be written."
            ) from error


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    with _told(path):
        return path.read_text("utf-8", errors="replace").splitlines(keepends=True)


def _step(line: str) -> float:
    """Return the step of a line; infinity for one that was cut short."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return float("inf")


def _writer(folder: Path, step: int) -> Any:
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
    """A look at the validation loss.

    Args:
        step: optimiser steps that were done.
        tokens: targets that were learned from by then.
        train_loss: mean over the targets since the look before, as they were trained on; nats.
        validation_loss: mean over the validation targets; nats.
        learning_rate: of the last step.
        seconds: of training by then, looks not counted.
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
        measured: every look.
        best_step: steps after which the validation loss was lowest; the model has these weights.
        out_of_time: whether `max_minutes` ended the run before its last step.
    """

    measured: tuple[Measured, ...]
    best_step: int
    out_of_time: bool

    @property
    def best(self) -> Measured:
        """The look with the lowest validation loss."""
        return next(one for one in self.measured if one.step == self.best_step)
