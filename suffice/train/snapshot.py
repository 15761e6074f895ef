"""A training by epochs at one moment; see `moment` for what its file holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from suffice.data.dataset import Dataset
from suffice.train.history import Epoch
from suffice.train.moment import (
    Moment,
    differences,
    parts,
    random_states,
    read,
    set_random_states,
    write,
)
from suffice.train.settings import Training

__all__ = ["State", "differences", "random_states", "read", "set_random_states", "start", "write"]


@dataclass(kw_only=True)
class State(Moment):
    """A training at one moment; its sums are the loss and the hits of the epoch so far.

    Args:
        epoch: the epoch in progress, from 1; one past the last when all are done.
        step: optimiser steps of that epoch that are done.
        seconds: training time of that epoch so far.
        best_epoch: epoch whose weights `best` holds; 0 before the first.
        stopped_early: whether patience or what is enough has ended the run.
    """

    KIND: ClassVar[str] = "training"
    COUNTERS: ClassVar[dict[str, type]] = {
        "epoch": int,
        "step": int,
        "best_epoch": int,
        "seconds": float,
        "stopped_early": bool,
    }
    RECORD: ClassVar[type] = Epoch

    epoch: int = 1
    step: int = 0
    seconds: float = 0.0
    best_epoch: int = 0
    stopped_early: bool = False

    def keep_best(self) -> None:
        """Copy the present weights to `best`."""
        super().keep_best()
        self.best_epoch = self.epoch

    def next_epoch(self) -> None:
        """Stand at the beginning of the next epoch."""
        self.epoch += 1
        self.step, self.seconds = 0, 0.0
        self.totals.zero_()

    @classmethod
    def sound(cls, facts: Mapping[str, Any]) -> bool:
        """Return whether a record stands for each epoch that is done, and the best is one."""
        history = facts["history"]
        numbered = [record["epoch"] for record in history] == list(range(1, len(history) + 1))
        within = bool(history) <= facts["best_epoch"] <= len(history) and facts["step"] >= 0
        return numbered and within and facts["epoch"] == len(history) + 1


def start(
    model: nn.Module,
    dataset: Dataset,
    training: Training,
    *,
    seed: int,
    device: torch.device,
) -> State:
    """Return the state of a training before its first step."""
    sizes = {"train": len(dataset.train), "validation": len(dataset.validation)}
    return State(
        identity={
            "seed": seed,
            "training": asdict(training),
            "data": {"name": dataset.name, **sizes},
            "device": device.type,
        },
        **parts(model, training, device),
    )
