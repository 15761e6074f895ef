"""The trainings of a healing, one after the other on one stream of rows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.convert.calibration import attentions, watched
from suffice.data.dataset import NOT_ASKED
from suffice.errors import ConfigError
from suffice.heal.report import Stage
from suffice.heal.settings import Healing
from suffice.layers.lora import lora_targets
from suffice.models import LM
from suffice.progress import Progress
from suffice.text import TokenFile
from suffice.train.evaluate import losses
from suffice.train.language import Batch, LMTraining, Objective, Windows, evaluate_lm, fit_lm
from suffice.train.language.loss import autocast, logits
from suffice.train.settings import derive


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


def check_installed() -> None:
    """Refuse to go on without PEFT.

    Raises:
        ConfigError: if it cannot be imported.
    """
    try:
        import peft  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "low-rank adapters need peft, which is not installed: pip install 'suffice[lora]', or "
            "leave --lora out and train all weights."
        ) from error


def adapted(lm: LM, *, rank: int, alpha: float, seed: int) -> nn.Module:
    """Return a model around `lm` in which adapters of its attention's maps learn, and nothing else.

    Its answers are those of `lm` as long as nothing has been learned.

    Args:
        lm: changed in place, until `merged` gives it back.
        rank: of the adapters.
        alpha: their scale is alpha over rank.
        seed: of their first weights.
    """
    import peft

    torch.manual_seed(derive("adapters", seed))
    wanted = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=lora_targets(lm))
    return peft.LoraModel(lm, wanted, "default")


def merged(model: nn.Module) -> LM:
    """Return the language model that `adapted` was given, with its adapters added to its maps."""
    lm = model.merge_and_unload()
    return lm.requires_grad_(True)


class Distillation:
    """Divergence from the teacher's distribution of the next token, mixed with cross-entropy.

    Args:
        teacher: in evaluation.
        kl: share of the divergence, 0 to 1.
        facts: of both models, for the checkpoint.
    """

    def __init__(self, teacher: LM, kl: float, facts: Mapping[str, object] | None = None) -> None:
        self.teacher, self.kl = teacher, kl
        self.facts = {"name": "distillation", "kl": kl, **(facts or {})}

    def summed(self, model: nn.Module, batch: Batch, *, dtype: str) -> Tensor:
        """Return the sum over the batch's targets."""
        found, targets = logits(model, batch, dtype=dtype)
        loss = losses(found, targets, reduction="sum") * (1.0 - self.kl)
        if not self.kl:
            return loss
        with torch.no_grad():
            wanted, _ = logits(self.teacher, batch, dtype=dtype)
        asked = targets != NOT_ASKED
        own, theirs = (F.log_softmax(one[asked], dim=-1) for one in (found, wanted))
        return loss + self.kl * F.kl_div(own, theirs, reduction="sum", log_target=True)


class Control:
    """Cross-entropy alone, on the model as it was before its conversion.

    Args:
        facts: of the model, for the checkpoint.
    """

    def __init__(self, facts: Mapping[str, object] | None = None) -> None:
        self.facts = {"name": "control", **(facts or {})}

    def summed(self, model: nn.Module, batch: Batch, *, dtype: str) -> Tensor:
        """Return the sum over the batch's targets."""
        return losses(*logits(model, batch, dtype=dtype), reduction="sum")


class Regression:
    """Squared error of layers over the squares of the teacher's outputs, the mean of all layers.

    Shares are what makes layers of loud and of quiet outputs count alike.

    Args:
        teacher: in evaluation, its features in the student's order.
        layers: names of the layers that learn.
        facts: of both models, for the checkpoint.
    """

    def __init__(
        self, teacher: LM, layers: Sequence[str], facts: Mapping[str, object] | None = None
    ) -> None:
        self.teacher = teacher
        self.layers = tuple(layers)
        self.facts = {"name": "regression", "layers": list(layers), **(facts or {})}

    def summed(self, model: LM, batch: Batch, *, dtype: str) -> Tensor:
        """Return the mean share of the layers, times the batch's targets."""
        own, theirs = attentions(model), attentions(self.teacher)
        shares: list[Tensor] = []

        def seen(name: str, x: Tensor, where: dict[str, Any], y: Tensor) -> None:
            with torch.enable_grad():
                found = own[name](x, **where)
                shares.append(_share(found, y, where.get("valid")))

        marks = {"valid": batch.valid, "segments": batch.segments}
        given = {name: mark for name, mark in marks.items() if mark is not None}
        with (
            torch.no_grad(),
            autocast(batch.tokens.device, dtype),
            watched({name: theirs[name] for name in self.layers}, seen),
        ):
            self.teacher(batch.tokens, **given)
        return torch.stack(shares).mean() * batch.asked


def _share(found: Tensor, wanted: Tensor, valid: Tensor | None) -> Tensor:
    """Return the squared error over the squares of what is wanted; [B, T, M] each."""
    found, wanted = found.float(), wanted.float()
    if valid is not None:
        found, wanted = found[valid], wanted[valid]
    return (found - wanted).square().sum() / wanted.square().sum().clamp(min=1e-12)
