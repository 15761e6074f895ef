"""Experiment trackers: TensorBoard, Trackio and Weights & Biases."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from suffice.errors import check_known, installed_for

PROJECT = "suffice"


class Tracker(Protocol):
    """What a training writes its numbers to."""

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Record numbers by name at a step; steps never fall."""

    def close(self) -> None:
        """Write what is still held."""


class TensorBoard:
    """TensorBoard's event files.

    Args:
        folder: folder of the run.
        step: step of the checkpoint that is resumed; later events of the run are purged. 0 = a new
            run.
        written: unused, as events are purged.
    """

    def __init__(self, folder: Path, *, step: int, written: int) -> None:  # noqa: ARG002
        from torch.utils.tensorboard import SummaryWriter

        purge = step + 1 if step else None
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Record numbers by name at a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is still held."""
        self._writer.close()


class Trackio:
    """Trackio's database on this machine (TRACKIO_DIR); `trackio show --project suffice` shows it.

    Args:
        folder: folder of the run, whose name is the run's.
        step: step of the checkpoint that is resumed; 0 = a new run.
        written: last step that an earlier session wrote. A resumed training repeats its numbers
            exactly, so they are not written twice.
    """

    def __init__(self, folder: Path, *, step: int, written: int) -> None:
        import trackio

        self._written = written
        with contextlib.redirect_stdout(sys.stderr):
            self._run = trackio.init(
                project=PROJECT,
                name=folder.absolute().name,
                resume="allow" if step else "never",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Record numbers by name at a step."""
        if step > self._written:
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Write what is still held."""
        with contextlib.redirect_stdout(sys.stderr):
            self._run.finish()


class WandB:
    """Weights & Biases, offline unless WANDB_MODE says otherwise; `wandb sync` uploads the run.

    A resumed training is a further run of the group that has the folder's name.

    Args:
        folder: folder of the run, which holds its files and whose name is the run's.
        step: step of the checkpoint that is resumed; 0 = a new run.
        written: last step that an earlier session wrote, as of `Trackio`.
    """

    def __init__(self, folder: Path, *, step: int, written: int) -> None:  # noqa: ARG002
        import wandb

        self._written = written
        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=PROJECT,
            name=folder.absolute().name,
            group=folder.absolute().name,
            dir=str(folder),
            mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
            settings=wandb.Settings(silent=True),
        )

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Record numbers by name at a step."""
        if step > self._written:
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Write what is still held."""
        self._run.finish()


TRACKERS: dict[str, Callable[..., Tracker]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": WandB,
}


def check_trackers(names: tuple[str, ...]) -> None:
    """Refuse the name of no tracker."""
    for name in names:
        check_known("tracker", name, TRACKERS)


def tracker(name: str, folder: Path, *, step: int, written: int) -> Tracker:
    """Open a tracker.

    Args:
        name: a key of `TRACKERS`.
        folder: folder of the run.
        step: step of the checkpoint that is resumed; 0 = a new run.
        written: last step that an earlier session of the run wrote.

    Raises:
        ConfigError: if it is unknown or not installed.
    """
    check_trackers((name,))
    otherwise = ", or leave it out: the log has the same numbers"
    with installed_for(f"the tracker {name}", name, otherwise):
        return TRACKERS[name](folder, step=step, written=written)


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a line of the log, but for its step.

    Example:
        >>> numbers({"step": 3, "loss": 0.5})
        {'loss': 0.5}
    """
    return {name: value for name, value in record.items() if name != "step"}
