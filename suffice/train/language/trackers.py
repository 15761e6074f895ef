"""Experiment trackers: TensorBoard, Trackio and Weights & Biases."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from suffice.errors import check_known, installed_for

PROJECT = "suffice"
Write = Callable[[dict[str, Any], int], None]  # records numbers by name at a step


@contextmanager
def _tensorboard(folder: Path, step: int, _written: int) -> Iterator[Write]:
    from torch.utils.tensorboard import SummaryWriter

    purge = step + 1 if step else None  # events of a resumed run that come after its checkpoint
    with closing(SummaryWriter(str(folder / "tensorboard"), purge_step=purge)) as writer:

        def write(values: dict[str, Any], step: int) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)

        yield write


@contextmanager
def _trackio(folder: Path, step: int, written: int) -> Iterator[Write]:
    import trackio

    with redirect_stdout(sys.stderr):
        run = trackio.init(
            project=PROJECT,
            name=folder.absolute().name,
            resume="allow" if step else "never",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
    try:
        yield _after(written, run)
    finally:
        with redirect_stdout(sys.stderr):
            run.finish()


@contextmanager
def _wandb(folder: Path, _step: int, written: int) -> Iterator[Write]:
    """Open a run; a resumed training is a further run of the group that has the folder's name."""
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    run = wandb.init(
        project=PROJECT,
        name=folder.absolute().name,
        group=folder.absolute().name,
        dir=str(folder),
        mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
        settings=wandb.Settings(silent=True),
    )
    try:
        yield _after(written, run)
    finally:
        run.finish()


def _after(written: int, run: Any) -> Write:
    """Leave out steps that are written: a resumed training repeats their numbers exactly."""

    def write(values: dict[str, Any], step: int) -> None:
        if step > written:
            run.log(values, step=step)

    return write


TRACKERS = {"tensorboard": _tensorboard, "trackio": _trackio, "wandb": _wandb}


def check_trackers(names: tuple[str, ...]) -> None:
    """Refuse the name of no tracker."""
    for name in names:
        check_known("tracker", name, TRACKERS)


def open_tracker(name: str, folder: Path, stack: ExitStack, *, step: int, written: int) -> Write:
    """Open a tracker until a stack ends, and return a function that records numbers at a step.

    Args:
        name: a key of `TRACKERS`. Trackio keeps its database on this machine (TRACKIO_DIR), which
            `trackio show --project suffice` shows; Weights & Biases is offline unless WANDB_MODE
            says otherwise, and `wandb sync` uploads the run.
        folder: folder of the run, whose name is the run's.
        stack: closes the tracker when it ends.
        step: step of the checkpoint that is resumed; 0 = a new run.
        written: last step that an earlier session of the run wrote.

    Raises:
        ConfigError: if it is unknown or not installed.
    """
    check_trackers((name,))
    otherwise = ", or leave it out: the log has the same numbers"
    with installed_for(f"the tracker {name}", name, otherwise):
        return stack.enter_context(TRACKERS[name](folder, step, written))
