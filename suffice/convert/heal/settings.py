"""The settings of a healing and of its stages."""

from __future__ import annotations

from dataclasses import dataclass

from suffice.errors import ConfigError
from suffice.train.language import LMTraining
from suffice.utils.records import check_fields

MAX_STEPS = 1_000_000  # of a stage that a time limit ends
COUNTS = ("steps", "batch_size", "length", "evaluate_every", "evaluation_batches", "rank")
POSITIVE = ("minutes", "regression_rate", "learning_rate", "alpha")


@dataclass(frozen=True, kw_only=True)
class Healing:
    """The budget of a healing, and how it is spent.

    Raises:
        ConfigError: naming every value that is not legal.

    Example:
        >>> Healing(minutes=0.0)
        Traceback (most recent call last):
        suffice.errors.ConfigError: minutes=0.0; give a number above 0.
    """

    # minutes of training in both stages together, without evaluations and the control; None: no
    # limit. Where a time limit ends a stage depends on the speed of the machine.
    minutes: float | None = 10.0
    steps: int | None = None  # steps of both stages together; None: those that the time allows
    # share of the budget, from 0 to below 1, in which the converted layers alone are trained on the
    # teacher's outputs; in the rest the whole model is distilled
    regression: float = 0.25
    regression_rate: float = 3e-3  # AdamW's learning rate in the first stage
    learning_rate: float = 5e-4  # AdamW's learning rate in the second stage, and of the control
    # weight of the divergence from the teacher in the second stage's loss, from 0 to 1; the rest is
    # cross-entropy
    kl: float = 0.5
    batch_size: int = 16  # rows of a step
    length: int = 256  # tokens of a row, at most the context length of the models
    warmup: int = 20  # steps during which the learning rates rise
    evaluate_every: int = 100  # steps between evaluations on the validation text
    # batches of an evaluation, spread over the validation text; None: all
    evaluation_batches: int | None = 16
    # whether the second stage, and the control, train low-rank adapters of the attention
    # projections alone; they are merged at the end
    lora: bool = False
    rank: int = 8  # rank of the adapters
    alpha: float = 16.0  # numerator of their scale, alpha / rank

    def __post_init__(self) -> None:
        check_fields(self)
        if problems := _problems(self):
            raise ConfigError(" ".join(problems))

    @property
    def regression_steps(self) -> int:
        """The most steps of the first stage; 0 = there is none."""
        if not self.regression:
            return 0
        return MAX_STEPS if self.steps is None else round(self.regression * self.steps)

    def first(self) -> LMTraining:
        """Return the settings of the regression."""
        return self._training(self.regression_steps, self.regression_rate, self.regression)

    def second(self) -> LMTraining:
        """Return the settings of the distillation."""
        steps = MAX_STEPS if self.steps is None else self.steps - self.regression_steps
        share = 1.0 - self.regression if self.regression_steps else 1.0
        return self._training(steps, self.learning_rate, share)

    def control(self, steps: int) -> LMTraining:
        """Return the settings of the control, given the steps of both stages."""
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


def _problems(healing: Healing) -> list[str]:
    fields = {name: value for name, value in vars(healing).items() if value is not None}
    problems = [
        f"{k}={fields[k]}; give a number above 0." for k in POSITIVE if fields.get(k, 1) <= 0
    ]
    problems += [f"{k}={fields[k]}; give an integer >= 1." for k in COUNTS if fields.get(k, 1) < 1]
    if healing.minutes is None and healing.steps is None:
        problems.append("minutes=None and steps=None; give at least one of them.")
    if not 0 <= healing.regression < 1:
        problems.append(f"regression={healing.regression}; give a share from 0 to below 1.")
    if not 0 <= healing.kl <= 1:
        problems.append(f"kl={healing.kl}; give a weight from 0 to 1.")
    if healing.warmup < 0:
        problems.append(f"warmup={healing.warmup}; give an integer >= 0.")
    return problems
