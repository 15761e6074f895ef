"""The trainings of a healing: regression, distillation and the control, on one stream of rows."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.convert.calibration import Replay, attention_layers, observing, relative_error
from suffice.convert.heal.pairing import Pair
from suffice.convert.heal.settings import Healing
from suffice.convert.heal.text import Texts
from suffice.data.dataset import IGNORE_INDEX
from suffice.errors import installed_for
from suffice.layers.attention import lora_targets
from suffice.models import LM
from suffice.train import Progress
from suffice.train.language import (
    Batch,
    CrossEntropy,
    LMTraining,
    Objective,
    Windows,
    evaluate_lm,
    fit_lm,
    logits,
)
from suffice.train.scoring import cross_entropy
from suffice.train.settings import autocast, derive


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One training of a healing."""

    name: str  # "regression", "distillation" or "control"
    loss: str  # the objective in words
    steps: int  # number of steps
    tokens: int  # number of tokens trained on
    minutes: float  # minutes of training, without evaluations
    # step after which the validation loss was lowest; 0: before the first, so that the stage
    # changed nothing
    best_step: int
    validation_before: float  # validation loss of the weights it began with
    validation_after: float  # validation loss of the weights it ended with
    out_of_time: bool  # whether the time limit ended it


@dataclass(frozen=True)
class LaterWindows:
    """The windows of a text that follow those of earlier stages."""

    windows: Windows
    first: int  # steps whose rows are skipped

    @property
    def facts(self) -> dict[str, object]:
        return {**self.windows.facts, "first": self.first}

    def rows(self, step: int, start: int, stop: int) -> Batch:
        return self.windows.rows(self.first + step, start, stop)


@dataclass(kw_only=True)
class Stages:
    """Runs the stages, and records them in `done`."""

    texts: Texts
    healing: Healing
    seed: int  # of rows, dropout and adapters
    device: str
    folder: Path | None  # for checkpoints and logs; None writes none
    resume: bool
    progress: Progress
    done: list[Stage] = field(default_factory=list)

    def regress(self, pair: Pair) -> None:
        """Train the layers that differ to give the outputs of the teacher's layers."""
        student, layers = pair.student, attention_layers(pair.student)
        facts = {"teacher": _digest(pair.teacher), "start": _digest(student)}
        objective = Regression(pair.teacher, pair.layers, facts)
        student.requires_grad_(False)
        for name in pair.layers:
            layers[name].requires_grad_(True)
        loss = "squared error of the converted layers' outputs"
        self.run("regression", student, self.healing.first(), objective, loss=loss)
        student.requires_grad_(True)

    def distil(self, pair: Pair) -> None:
        """Train the student, or adapters in it, on the teacher's predictions and the text."""
        kl, student = self.healing.kl, pair.student
        facts = {"teacher": _digest(pair.teacher), "start": _digest(student)}
        objective = Distillation(pair.teacher, kl, facts)
        settings, first = self.healing.second(), self._steps
        loss = f"{kl:g} of divergence, {1 - kl:g} of cross-entropy"
        self._train("distillation", student, settings, objective, first=first, loss=loss)

    def control(self, teacher: LM) -> LM:
        """Return the teacher after the same steps on the same rows, by cross-entropy."""
        model = copy.deepcopy(teacher).to(self.device).requires_grad_(True)
        objective, settings = Control({"start": _digest(model)}), self.healing.control(self._steps)
        self._train("control", model, settings, objective, loss="cross-entropy")
        return model

    def run(
        self,
        name: str,
        model: nn.Module,
        settings: LMTraining,
        objective: Objective,
        *,
        loss: str,
        first: int = 0,
    ) -> None:
        """Train a model in place; the weights it began with stay if none are better."""
        start = {n: tensor.clone() for n, tensor in model.state_dict().items()}
        before = evaluate_lm(
            model,
            self.texts.validation,
            length=settings.length,
            batch_size=2 * math.ceil(settings.batch_size / settings.accumulate),
            batches=settings.evaluation_batches,
            dtype=settings.dtype,
            device=self.device,
        )
        self.progress.cell(name)
        checkpoint = None if self.folder is None else self.folder / f"{name}.safetensors"
        windows = Windows(
            self.texts.train, settings.batch_size, settings.length, derive("windows", self.seed)
        )
        run = fit_lm(
            model,
            LaterWindows(windows, first),
            self.texts.validation,
            settings,
            seed=derive(name, self.seed),
            device=self.device,
            checkpoint=checkpoint,
            resume=self.resume and checkpoint is not None and checkpoint.exists(),
            progress=self.progress,
            log=None if self.folder is None else self.folder / f"{name}.jsonl",
            objective=objective,
        )
        last, best = run.measured[-1], run.best
        better = best.validation_loss < before
        if not better:
            model.load_state_dict(start)
        self.done.append(
            Stage(
                name=name,
                loss=loss,
                steps=last.step,
                tokens=last.tokens,
                minutes=last.seconds / 60,
                best_step=best.step if better else 0,
                validation_before=before,
                validation_after=min(best.validation_loss, before),
                out_of_time=run.out_of_time,
            )
        )

    @property
    def _steps(self) -> int:
        return sum(stage.steps for stage in self.done)

    def _train(self, name: str, lm: LM, *stage: Any, **options: Any) -> None:
        if not self.healing.lora:
            self.run(name, lm, *stage, **options)
            return
        import peft

        torch.manual_seed(derive("adapters", self.seed))
        config = peft.LoraConfig(
            r=self.healing.rank, lora_alpha=self.healing.alpha, target_modules=lora_targets(lm)
        )
        model = peft.LoraModel(lm, config, "default")
        self.run(name, model, *stage, **options)
        model.merge_and_unload().requires_grad_(True)


def check_peft() -> None:
    with installed_for("--lora", "lora", ", or leave --lora out and train all weights"):
        import peft  # noqa: F401


def _digest(model: nn.Module) -> str:
    sha256 = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        sha256.update(f"{name}{tuple(tensor.shape)}".encode())
        sha256.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return sha256.hexdigest()


class Regression:
    """Squared error of outputs over the energy of the teacher's, so that all layers count alike."""

    def __init__(
        self, teacher: LM, layers: Sequence[str], facts: Mapping[str, object] | None = None
    ) -> None:
        self.teacher, self.layers = teacher, tuple(layers)
        self.facts = {"name": "regression", "layers": list(layers), **(facts or {})}

    def summed_loss(self, model: LM, batch: Batch, *, dtype: str) -> Tensor:
        """Return the mean error of the layers, times the number of the batch's targets."""
        replay, teacher = (
            Replay(attention_layers(model), self.layers),
            attention_layers(self.teacher),
        )
        errors: list[Tensor] = []

        def compare(name: str, x: Tensor, call: dict[str, Any], wanted: Tensor) -> None:
            with torch.enable_grad():
                output = replay(name, x, call)
                if name in self.layers:
                    errors.append(relative_error(output, wanted, call.get("valid")))

        masks = {"valid": batch.valid, "segments": batch.segments}
        with (
            torch.no_grad(),
            autocast(batch.tokens.device, dtype),
            observing({name: teacher[name] for name in replay.names}, compare),
        ):
            self.teacher(batch.tokens, **{n: mask for n, mask in masks.items() if mask is not None})
        return torch.stack(errors).mean() * batch.num_targets


class Distillation:
    """KL divergence from the teacher's next-token distribution, mixed with cross-entropy."""

    def __init__(self, teacher: LM, kl: float, facts: Mapping[str, object] | None = None) -> None:
        self.teacher, self.kl = teacher, kl
        self.facts = {"name": "distillation", "kl": kl, **(facts or {})}

    def summed_loss(self, model: nn.Module, batch: Batch, *, dtype: str) -> Tensor:
        student_logits, targets = logits(model, batch, dtype=dtype)
        loss = cross_entropy(student_logits, targets, reduction="sum") * (1.0 - self.kl)
        if not self.kl:
            return loss
        with torch.no_grad():
            teacher_logits, _ = logits(self.teacher, batch, dtype=dtype)
        predicted = targets != IGNORE_INDEX
        student, teacher = (
            F.log_softmax(one[predicted], dim=-1) for one in (student_logits, teacher_logits)
        )
        return loss + self.kl * F.kl_div(student, teacher, reduction="sum", log_target=True)


class Control(CrossEntropy):
    """Cross-entropy, under a separate name in the checkpoint."""

    def __init__(self, facts: Mapping[str, object] | None = None) -> None:
        self.facts = {"name": "control", **(facts or {})}
