"""How a converted model is healed: the settings of its stages."""

from __future__ import annotations

from dataclasses import dataclass

from suffice.errors import ConfigError
from suffice.records import check_fields
from suffice.train.language import LMTraining

MOST = 1_000_000  # steps of a stage that ends by its time
COUNTS = ("steps", "batch_size", "length", "evaluate_every", "evaluation_batches", "rank")
POSITIVE = ("minutes", "regression_rate", "learning_rate", "alpha")


@dataclass(frozen=True, kw_only=True)
class Healing:
    """The budget of a healing, and how it is spent.

    Args:
        minutes: of training in both stages together, looks at the loss and the control not
            counted; None = no limit. What it ends depends on the machine's speed.
        steps: of both stages together; None = as many as the minutes allow.
        regression: share of the budget in which the converted layers learn the teacher's outputs,
            from 0 to below 1; in the rest the whole model learns the teacher's answers.
        regression_rate: AdamW's rate of the first stage.
        learning_rate: of the second, and of the control.
        kl: share of the divergence from the teacher in the second stage's loss, from 0 to 1; the
            rest is cross-entropy.
        batch_size: rows of a step.
        length: tokens of a row, at most what the models read.
        warmup: steps during which the rates rise.
        evaluate_every: steps between two looks at the validation loss.
        evaluation_batches: of a look, spread over the validation text; None looks at all of it.
        lora: whether the second stage, and the control, learn low-rank adapters of the attention's
            maps alone; they are merged at its end.
        rank: of the adapters.
        alpha: their scale is alpha over rank.

    Raises:
        ConfigError: if a value is not legal; all of them are told at once.

    Example:
        >>> Healing(minutes=0.0)
        Traceback (most recent call last):
        suffice.errors.ConfigError: minutes=0.0; give a number above 0.
    """

    minutes: float | None = 10.0
    steps: int | None = None
    regression: float = 0.25
    regression_rate: float = 3e-3
    learning_rate: float = 5e-4
    kl: float = 0.5
    batch_size: int = 16
    length: int = 256
    warmup: int = 20
    evaluate_every: int = 100
    evaluation_batches: int | None = 16
    lora: bool = False
    rank: int = 8
    alpha: float = 16.0

    def __post_init__(self) -> None:
        check_fields(self)
        if wrong := _wrong(self):
            raise ConfigError(" ".join(wrong))

    @property
    def regression_steps(self) -> int:
        """Steps of the first stage at most; 0 = there is none."""
        if not self.regression:
            return 0
        return MOST if self.steps is None else round(self.regression * self.steps)

    def first(self) -> LMTraining:
        """Return the settings of the regression."""
        return self._training(self.regression_steps, self.regression_rate, self.regression)

    def second(self) -> LMTraining:
        """Return the settings of the distillation."""
        steps = MOST if self.steps is None else self.steps - self.regression_steps
        share = 1.0 - self.regression if self.regression_steps else 1.0
        return self._training(steps, self.learning_rate, share)

    def control(self, steps: int) -> LMTraining:
        """Return the settings of the control, which makes as many steps as both stages made."""
        return self._training(steps, self.learning_rate, None)

    def _training(self, steps: int, rate: float, share: float | None) -> LMTraining:
        limited = share is not None and self.minutes is not None
        return LMTraining(
            steps=steps,
            batch_size=self.batch_size,
            length=self.length,
            learning_rate=rate,
            warmup=min(self.warmup, steps // 10),
            evaluate_every=self.evaluate_every,
            evaluation_batches=self.evaluation_batches,
            max_minutes=self.minutes * share if limited else None,
        )


def _wrong(healing: Healing) -> list[str]:
    """Return a sentence for each value that is not legal though of its kind."""
    given = {name: getattr(healing, name) for name in (*COUNTS, *POSITIVE)}
    given = {name: value for name, value in given.items() if value is not None}
    wrong = [f"{k}={given[k]}; give a number above 0." for k in POSITIVE if given.get(k, 1) <= 0]
    wrong += [f"{k}={given[k]}; give an integer >= 1." for k in COUNTS if given.get(k, 1) < 1]
    if healing.minutes is None and healing.steps is None:
        wrong.append("minutes=None and steps=None; give at least one of them.")
    if not 0 <= healing.regression < 1:
        wrong.append(f"regression={healing.regression}; give a share from 0 to below 1.")
    if not 0 <= healing.kl <= 1:
        wrong.append(f"kl={healing.kl}; give a share from 0 to 1.")
    if healing.warmup < 0:
        wrong.append(f"warmup={healing.warmup}; give an integer >= 0.")
    return wrong
