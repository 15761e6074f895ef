"""What a healing changed, beside what the same budget does to the model as it was."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from suffice.convert.certificate import LossChange


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One training of a healing.

    Args:
        name: "regression", "distillation" or "control".
        loss: what it lowered, in words.
        steps: that were made.
        tokens: that were learned from.
        minutes: of training, looks at the validation loss not counted.
        best_step: after which the validation loss was lowest; 0 = before the first, and the stage
            changed nothing.
        validation_before: loss of what it began with on the validation text.
        validation_after: of what it ended with.
        out_of_time: whether the minutes ended it.
    """

    name: str
    loss: str
    steps: int
    tokens: int
    minutes: float
    best_step: int
    validation_before: float
    validation_after: float
    out_of_time: bool


@dataclass(frozen=True, kw_only=True)
class HealingReport:
    """Losses on held-out text, which nothing was trained on or chosen by; paired by row.

    Args:
        converted: from the teacher to the model that was given.
        regressed: from the teacher to that after the first stage; None where there was none.
        healed: from the teacher to that after the last.
        control: from the teacher to the teacher trained on the same rows, by cross-entropy, in as
            many steps.
        gained: from the model that was given to the healed one.
        against_control: from the control to the healed one.
        stages: the trainings, the control last.
        layers: names of the layers that the first stage trained.
        settings: of the healing.
        seed: of rows and dropout.
    """

    converted: LossChange
    regressed: LossChange | None
    healed: LossChange
    control: LossChange
    gained: LossChange
    against_control: LossChange
    stages: tuple[Stage, ...]
    layers: tuple[str, ...]
    settings: dict[str, Any]
    seed: int

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)
