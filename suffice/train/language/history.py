"""What training a language model leaves behind: one record for each look at the validation loss."""

from __future__ import annotations

from dataclasses import dataclass


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
