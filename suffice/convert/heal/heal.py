"""`heal`: train a converted language model back towards its teacher, with a control."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from suffice.convert.certificate import LossChange, change_of_loss, row_losses
from suffice.convert.heal.pairing import check_unlike, paired
from suffice.convert.heal.settings import Healing
from suffice.convert.heal.stages import Stage, Stages, check_peft
from suffice.convert.heal.text import Texts
from suffice.errors import ConfigError
from suffice.models import LM, folder
from suffice.text import Tokenizer
from suffice.train import Progress, Silent, current, resolve_device
from suffice.utils.files import write_json

REPORT = "healing.json"


@dataclass(frozen=True, kw_only=True)
class HealingReport:
    """Losses on held-out text that was used neither to train nor to choose; paired by row."""

    converted: LossChange  # change from the teacher to the converted model
    # change from the teacher to the student after the regression, if there was one
    regressed: LossChange | None
    healed: LossChange  # change from the teacher to the healed model
    # change from the teacher to the teacher trained on the same rows, by cross-entropy, for the
    # same steps
    control: LossChange
    gained: LossChange  # change from the converted to the healed model
    against_control: LossChange  # change from the control to the healed model
    stages: tuple[Stage, ...]  # the trainings, the control last
    layers: tuple[str, ...]  # names of the layers that the regression trained
    settings: dict[str, Any]  # settings of the healing
    seed: int  # seed of rows and dropout

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Healed:
    """The result of `heal`."""

    model: LM  # the student with the weights that were best on the validation text
    report: HealingReport  # losses of the model, the teacher and the control


def heal(
    student: nn.Module,
    teacher: nn.Module,
    texts: Texts,
    *,
    healing: Healing | None = None,
    seed: int = 0,
    device: str = "cpu",
    folder: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Healed:
    """Train a converted language model towards its teacher, and measure what that gained.

    First the layers that differ are trained to give the outputs of the teacher's layers; then the
    whole model, or adapters in it, is trained on the teacher's predictions and on the text. The
    control is the teacher itself after the same steps on the same rows, by the same optimiser and,
    where there are adapters, with adapters too, but by cross-entropy alone. Each stage ends with
    the weights that were best on the validation text, those it began with among them. Losses are
    reported on the held-out text, paired by row.

    Ctrl-C lets the current step finish, writes a checkpoint and raises Interrupted; a resumed
    healing ends with exactly the weights of one that was not interrupted, unless time ends it.

    Args:
        student: model that `suffice.convert.convert` returned, any mechanism; it is not changed.
        teacher: the model it was converted from; it is not changed.
        texts: texts to train on, to choose weights by, and to report losses on.
        healing: the settings; None: ten minutes.
        seed: seed of rows, dropout and adapters.
        device: "cpu" or "cuda".
        folder: folder for checkpoints and logs; None writes none.
        resume: whether to continue from the checkpoints in the folder.
        progress: function called with every step.

    Raises:
        ConfigError: if the student is not a conversion of the teacher, there is nothing to heal,
            adapters are asked for without PEFT, or several processes were started.
        ShapeError: if their vocabularies differ.
        DataError: if a text is shorter than one batch.
        CheckpointError: if a checkpoint cannot be written or read, or is of another healing.
        StateError: if a loss is no longer finite.
        Interrupted: on Ctrl-C.
    """
    healing = healing or Healing()
    if current().world_size > 1:
        raise ConfigError(
            f"{current().world_size} processes were started, and a healing runs in one; start it "
            "without torchrun."
        )
    if healing.lora:
        check_peft()
    pair = paired(student, teacher)
    lengths = (healing.length, pair.student.config.length, pair.teacher.config.length)
    healing = replace(healing, length=min(lengths))
    texts.check(batch_size=healing.batch_size, length=healing.length)
    rows = texts.rows(healing.length)
    for model in (pair.student, pair.teacher):
        model.to(resolve_device(device))
    check_unlike(pair, rows[:1, :-1])
    stages = Stages(
        texts=texts,
        healing=healing,
        seed=seed,
        device=device,
        folder=folder,
        resume=resume,
        progress=progress or Silent(),
    )
    teacher_losses, converted = _losses(pair.teacher, rows), _losses(pair.student, rows)
    regressed = None
    if pair.layers and healing.regression_steps:
        stages.regress(pair)
        regressed = _losses(pair.student, rows)
    stages.distil(pair)
    healed = _losses(pair.student, rows)
    control = _losses(stages.control(teacher), rows)

    def change(before: list[float], after: list[float]) -> LossChange:
        return change_of_loss(before, after, rows[:, 1:].numel())

    report = HealingReport(
        converted=change(teacher_losses, converted),
        regressed=None if regressed is None else change(teacher_losses, regressed),
        healed=change(teacher_losses, healed),
        control=change(teacher_losses, control),
        gained=change(converted, healed),
        against_control=change(control, healed),
        stages=tuple(stages.done),
        layers=pair.layers,
        settings=asdict(healing),
        seed=seed,
    )
    return Healed(model=pair.student.train(student.training), report=report)


def _losses(lm: LM, rows: Tensor) -> list[float]:
    training = lm.training
    losses = row_losses(lm.eval(), rows)
    lm.train(training)
    return losses


def save(out: Path, healed: Healed, tokenizer: Tokenizer, /, **facts: Any) -> None:
    """Write a healed model; the report comes first and the weights last.

    Args:
        out: the folder.
        healed: the model and its report.
        tokenizer: tokenizer of the model.
        **facts: further entries of config.json.

    Raises:
        CheckpointError: if the weights cannot be written.
        DataError: if the report cannot be written.
    """
    write_json(out / REPORT, healed.report.to_json())
    folder.save(out, healed.model, tokenizer, **facts)
