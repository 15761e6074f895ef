"""The trainings of a healing, one after the other on one stream of rows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from suffice.heal.report import Stage
from suffice.heal.settings import Healing
from suffice.text import TokenFile
from suffice.train.language import Batch, LMTraining, Objective, Windows, evaluate_lm, fit_lm
from suffice.train.progress import Progress
from suffice.train.seeds import derive


@dataclass(frozen=True)
class Later:
    """The rows of a source from a step on.

    Args:
        source: random windows of a text.
        first: the step whose rows come first.
    """

    source: Windows
    first: int

    @property
    def facts(self) -> dict[str, object]:
        """What the source is, and where this begins."""
        return {**self.source.facts, "first": self.first}

    def rows(self, step: int, start: int, stop: int) -> Batch:
        """Return rows of a step's batch."""
        return self.source.rows(self.first + step, start, stop)


@dataclass(kw_only=True)
class Stages:
    """What the trainings share.

    Args:
        train: what is learned from.
        validation: what weights are chosen by.
        healing: the settings.
        seed: of rows and dropout.
        device: "cpu" or "cuda".
        folder: of checkpoints and logs; None writes none.
        resume: go on from checkpoints that are there.
        progress: told of every step.
        done: the stages so far.
    """

    train: TokenFile
    validation: TokenFile
    healing: Healing
    seed: int
    device: str
    folder: Path | None
    resume: bool
    progress: Progress
    done: list[Stage] = field(default_factory=list)

    def run(
        self,
        name: str,
        model: nn.Module,
        training: LMTraining,
        objective: Objective,
        *,
        first: int,
        loss: str,
    ) -> Stage:
        """Train a model in place; it keeps what it began with if no look finds it better.

        Args:
            name: of the stage.
            model: what learns; parameters that ask for no gradient stay.
            training: the settings.
            objective: what is lowered.
            first: steps of the stages before, on whose rows these follow.
            loss: the objective in words.
        """
        start = {n: tensor.clone() for n, tensor in model.state_dict().items()}
        before = self._look(model, training)
        self.progress.cell(name)
        place = None if self.folder is None else self.folder / f"{name}.safetensors"
        run = fit_lm(
            model,
            Later(self._source(training), first),
            self.validation,
            training,
            seed=derive(name, self.seed),
            device=self.device,
            checkpoint=place,
            resume=self.resume and place is not None and place.exists(),
            progress=self.progress,
            log=None if self.folder is None else self.folder / f"{name}.jsonl",
            objective=objective,
        )
        last, best = run.measured[-1], run.best
        better = best.validation_loss < before
        if not better:
            model.load_state_dict(start)
        stage = Stage(
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
        self.done.append(stage)
        return stage

    def _source(self, training: LMTraining) -> Windows:
        seed = derive("windows", self.seed)
        return Windows(self.train, training.batch_size, training.length, seed)

    def _look(self, model: nn.Module, training: LMTraining) -> float:
        """Return the validation loss as the training looks at it."""
        return evaluate_lm(
            model,
            self.validation,
            length=training.length,
            batch_size=2 * math.ceil(training.batch_size / training.accumulate),
            batches=training.evaluation_batches,
            dtype=training.dtype,
            device=self.device,
        )


def digest(model: nn.Module) -> str:
    """Return what tells a model's weights from others, for checkpoints."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(f"{name}{tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def facts_of(**models: nn.Module) -> Mapping[str, object]:
    """Return the digests of some models, by what they are."""
    return {name: digest(model) for name, model in models.items()}
