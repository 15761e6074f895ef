"""`heal`: train a converted language model back towards what it was, beside a control."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from suffice.convert.calibration import attentions
from suffice.convert.certificate import change_of_loss, losses
from suffice.errors import CheckpointError, ConfigError
from suffice.files import replacing
from suffice.heal.pairing import Pair, check_unlike, paired
from suffice.heal.report import HealingReport
from suffice.heal.settings import Healing
from suffice.heal.stages import (
    Control,
    Distillation,
    Regression,
    Stages,
    adapted,
    check_installed,
    facts_of,
    merged,
)
from suffice.heal.text import Texts
from suffice.models import LM, folder
from suffice.text import Tokenizer
from suffice.train import Progress, Silent, current, resolve_device

SHARE = "squared error of the converted layers' outputs"
PLAIN = "cross-entropy"


@dataclass(frozen=True, kw_only=True)
class Healed:
    """What `heal` made.

    Args:
        model: the student with the weights that were best on the validation text.
        report: what that changed.
    """

    model: LM
    report: HealingReport


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
    """Train a converted language model towards the one it was, and say what that was worth.

    First the layers that differ learn the outputs of the teacher's layers on what those read; then
    the whole model, or adapters in it, learns the teacher's answers and the text. The control is
    the teacher itself after as many steps on the same rows, by the same optimiser and, where there
    are adapters, with adapters too, but by cross-entropy alone. Each stage keeps the weights that
    are best on the validation text, those it began with among them. Losses are reported of the
    held-out text, paired by row.

    Ctrl-C lets the step in progress finish, writes a checkpoint and raises Interrupted; a resumed
    healing ends with the very weights of one that was never interrupted, unless minutes end it.

    Args:
        student: what `suffice.convert.convert` made, any mechanism; it is not changed.
        teacher: what it was made of; it is not changed.
        texts: what is learned, chosen by and reported on.
        healing: the settings; None = ten minutes.
        seed: of rows, dropout and adapters.
        device: "cpu" or "cuda".
        folder: for checkpoints and logs; None writes none.
        resume: go on from what lies in the folder.
        progress: told of every step.

    Raises:
        ConfigError: if the two do not belong together, there is nothing to heal, adapters are asked
            for without PEFT, or several processes were started.
        ShapeError: if their vocabularies differ.
        DataError: if a text is shorter than one batch.
        CheckpointError: if a checkpoint cannot be written or read, or is of another healing.
        StateError: if a loss is no longer finite.
        Interrupted: on Ctrl-C.
    """
    healing = healing or Healing()
    if current().world_size > 1:
        raise ConfigError(
            f"{current().world_size} processes were started, and a healing is done by one; start "
            "it without torchrun."
        )
    if healing.lora:
        check_installed()
    pair = paired(student, teacher)
    limits = (healing.length, pair.student.config.length, pair.teacher.config.length)
    healing = replace(healing, length=min(limits))
    texts.check(batch_size=healing.batch_size, length=healing.length)
    rows, place = texts.rows(healing.length), resolve_device(device)
    pair.student.to(place)
    pair.teacher.to(place)
    check_unlike(pair, rows[:1, :-1])
    work = _Work(
        pair=pair,
        rows=rows,
        stages=Stages(
            train=texts.train,
            validation=texts.validation,
            healing=healing,
            seed=seed,
            device=device,
            folder=folder,
            resume=resume,
            progress=progress or Silent(),
        ),
    )
    report = work.report(teacher)
    return Healed(model=pair.student.train(student.training), report=report)


@dataclass(kw_only=True)
class _Work:
    """The stages on two models, and the losses of rows [B, T + 1] between them."""

    pair: Pair
    rows: Tensor
    stages: Stages

    def report(self, original: LM) -> HealingReport:
        """Heal the student of the pair and train the control; say what became of the losses."""
        stages, student = self.stages, self.pair.student
        theirs, given = self._losses(self.pair.teacher), self._losses(student)
        regressed = self._losses(student) if self._regress() else None
        self._distil()
        healed = self._losses(student)
        control = self._losses(self._control(original))
        compared = {
            "converted": (theirs, given),
            "healed": (theirs, healed),
            "control": (theirs, control),
            "gained": (given, healed),
            "against_control": (control, healed),
        }
        tokens = self.rows[:, 1:].numel()
        return HealingReport(
            **{name: change_of_loss(*both, tokens) for name, both in compared.items()},
            regressed=None if regressed is None else change_of_loss(theirs, regressed, tokens),
            stages=tuple(stages.done),
            layers=self.pair.layers,
            settings=asdict(stages.healing),
            seed=stages.seed,
        )

    def _regress(self) -> bool:
        """Train the layers that differ; return whether there was anything to do."""
        student, healing = self.pair.student, self.stages.healing
        if not self.pair.layers or not healing.regression_steps:
            return False
        facts = facts_of(teacher=self.pair.teacher, start=student)
        own = attentions(student)
        student.requires_grad_(False)
        for name in self.pair.layers:
            own[name].requires_grad_(True)
        objective = Regression(self.pair.teacher, self.pair.layers, facts)
        self.stages.run("regression", student, healing.first(), objective, first=0, loss=SHARE)
        student.requires_grad_(True)
        return True

    def _distil(self) -> None:
        """Train the whole student, or adapters."""
        healing, student = self.stages.healing, self.pair.student
        facts = facts_of(teacher=self.pair.teacher, start=student)
        objective = Distillation(self.pair.teacher, healing.kl, facts)
        words = f"{healing.kl:g} of divergence, {1 - healing.kl:g} of {PLAIN}"
        self._train(
            student,
            lambda model: self.stages.run(
                "distillation", model, healing.second(), objective, first=self._steps, loss=words
            ),
        )

    def _control(self, original: LM) -> LM:
        """Return the teacher after as many steps on the same rows."""
        model = copy.deepcopy(original).to(self.pair.teacher.device).requires_grad_(True)
        objective, training = (
            Control(facts_of(start=model)),
            self.stages.healing.control(self._steps),
        )
        self._train(
            model,
            lambda one: self.stages.run("control", one, training, objective, first=0, loss=PLAIN),
        )
        return model

    @property
    def _steps(self) -> int:
        """Steps that were made so far."""
        return sum(stage.steps for stage in self.stages.done)

    def _train(self, lm: LM, run: Callable[[nn.Module], object]) -> None:
        """Call `run` with what learns: a model, or one around it with adapters, merged then."""
        healing = self.stages.healing
        if not healing.lora:
            run(lm)
            return
        model = adapted(lm, rank=healing.rank, alpha=healing.alpha, seed=self.stages.seed)
        run(model)
        merged(model)

    def _losses(self, lm: LM) -> list[float]:
        """Return the loss of each row."""
        mode = lm.training
        lm.eval()
        with torch.inference_mode():
            found = losses(lm, self.rows)
        lm.train(mode)
        return found


REPORT = "healing.json"


def save(out: Path, made: Healed, tokenizer: Tokenizer, **facts: Any) -> None:
    """Write a healed model; the report comes first and the weights last.

    Args:
        out: the folder, which exists.
        made: the model and its report.
        tokenizer: of its tokens.
        **facts: what else is known.

    Raises:
        CheckpointError: if something cannot be written.
    """
    text = json.dumps(made.report.to_json(), indent=1, allow_nan=False) + "\n"
    try:
        with replacing(out / REPORT) as temporary:
            temporary.write_text(text, encoding="ascii", newline="\n")
    except OSError as error:
        raise CheckpointError(
            f"cannot write {out} ({error.strerror or error}); free space, or give another --out."
        ) from error
    folder.save(out, made.model, tokenizer, **facts)
