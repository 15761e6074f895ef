"""A training by steps at one moment; see `suffice.train.moment` for what its file holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from suffice.train.language.history import Measured
from suffice.train.language.settings import LMTraining
from suffice.train.moment import Moment, parts

FREE = ("max_minutes", "shard")  # settings that a resumed run may change


@dataclass(kw_only=True)
class LMState(Moment):
    """A training at one moment; its sums are the losses and the targets since the last look.

    Args:
        step: optimiser steps that are done.
        tokens: targets that were learned from.
        seconds: training time so far.
        best_step: steps after which the weights were what `best` holds; 0 before the first look.
    """

    KIND: ClassVar[str] = "training of a language model"
    COUNTERS: ClassVar[dict[str, type]] = {
        "step": int,
        "tokens": int,
        "seconds": float,
        "best_step": int,
    }
    RECORD: ClassVar[type] = Measured

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best_step: int = 0

    @property
    def best_loss(self) -> float:
        """The lowest validation loss so far."""
        return min((one.validation_loss for one in self.history), default=math.inf)

    def keep_best(self) -> None:
        """Copy the present weights to `best`."""
        super().keep_best()
        self.best_step = self.step

    @classmethod
    def sound(cls, facts: Mapping[str, Any]) -> bool:
        """Return whether looks were made at rising steps, up to the present one."""
        looks = [record["step"] for record in facts["history"]]
        rising = all(a < b for a, b in zip([0, *looks], [*looks, facts["step"] + 1], strict=True))
        return rising and facts["best_step"] in (looks or [0]) and facts["tokens"] >= 0


def start(
    model: nn.Module,
    training: LMTraining,
    *,
    data: dict[str, object],
    seed: int,
    device: torch.device,
) -> LMState:
    """Return the state of a training before its first step."""
    settings = {name: v for name, v in asdict(training).items() if name not in FREE}
    return LMState(
        identity={"seed": seed, "training": settings, "data": data, "device": device.type},
        **parts(model, training, device),
    )
