"""The comparison that would decide whether a composition suffices, and what it costs here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import ceil
from time import perf_counter
from typing import Any

import torch

from suffice.advise.request import Base
from suffice.measure.sequential import USUAL as SEEDS
from suffice.models import LMConfig, TranslatorConfig, ViTConfig
from suffice.models.composition import STANDARD, Composition
from suffice.recipes import Recipe, recipe
from suffice.recipes.language import SIZES
from suffice.recipes.own_data import PICTURES, TABLE, with_settings
from suffice.train.evaluate import ModelInputs, cross_entropy, flatten_answers
from suffice.train.optimiser import build

LANGUAGE = "lm_small"  # the recipe that a language model is compared by
ROWS = {
    "digits": 1_078,
    "mnist": 54_000,
    "cifar100": 45_000,
    "cifar10_jpeg": 45_000,
    "imdb": 22_500,
    "amazon": 16_668,
    "translation_es": 145_249,
    "womens_clothing": 18_134,
}
"""Rows that a model is trained on."""
TOKENS = 903_488  # of the text that `LANGUAGE` trains on
TIMED = 2e10  # FLOPs of a step that is timed; of larger batches some rows are
Seconds = Callable[[Recipe, str, int], float]
"""Returns the seconds of a training step of a mechanism with some heads."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A comparison with Standard that nobody has run yet, of the sizes that are asked for.

    Args:
        name: the composition that it is about.
        recipe: with the length and the sizes.
        num_heads: of both.
        command: that runs it.
        trainings: how many.
        minutes: of all trainings on this machine, from the measured time of a training step; None =
            not measured, or the rows of the data are not known.
    """

    name: str
    recipe: Recipe
    num_heads: int
    command: str
    trainings: int = 2 * SEEDS
    minutes: float | None = None

    @property
    def sentence(self) -> str:
        """The command with its cost."""
        cost = "of unknown length" if self.minutes is None else f"about {_duration(self.minutes)}"
        return f"`{self.command}` ({self.trainings} trainings, {cost})"

    @property
    def steps(self) -> int | None:
        """Optimiser steps of one training; None where the rows are not known before reading."""
        training = self.recipe.training
        rows = dict(self.recipe.task_options).get("rows") or ROWS.get(self.recipe.task)
        if self.recipe.task == "text" and rows is None:
            rows = TOKENS // self.recipe.model.length
        return rows and training.epochs * ceil(rows / training.batch_size)


def _duration(minutes: float) -> str:
    units = ((60.0 * 24, "days"), (60.0, "hours"), (1.0, "minutes"))
    size, unit = next((pair for pair in units if minutes >= 2 * pair[0]), units[-1])
    number = minutes / size
    if number < 2:  # noqa: PLR2004
        return "a minute on this machine"
    return f"{float(f'{number:.2g}'):,.0f} {unit} on this machine"


def trial(composition: Composition, base: Base) -> Trial | None:
    """Return the comparison of a composition; None where no training decides about it.

    That is so of Standard itself, and of what is changed after training.

    Raises:
        ConfigError: if the recipe cannot have the sizes.
    """
    if composition.of_use or composition.name == STANDARD:
        return None
    return Trial(
        name=composition.name,
        recipe=_setting(base)[0],
        num_heads=base.num_heads,
        command=command(base, STANDARD, composition.name),
    )


def command(base: Base, *names: str) -> str:
    """Return the command that trains compositions at the sizes of a model."""
    return f"suffice compare {_setting(base)[1]} --mechanisms {','.join(names)}"


@cache
def _setting(base: Base) -> tuple[Recipe, str]:
    """Return the recipe of a model with its length and sizes, and the options that make it."""
    named = recipe(LANGUAGE if base.task == "lm" else base.name)
    if isinstance(named.model, ViTConfig):
        wanted = {"image_size": base.config.image_size}
    else:
        wanted = {"length": base.length}
    if base.task == "lm":
        wanted |= {name: getattr(base.config, name) for name in SIZES}
    sizes = {name: size for name, size in wanted.items() if size != getattr(named.model, name)}
    options = [f"--recipe {named.name}", *(f"--set {name}={n}" for name, n in sizes.items())]
    if named.name in (TABLE, PICTURES):
        options.append("--data YOUR_FILES")
    if base.num_heads != named.num_heads:
        options.append(f"--heads {base.num_heads}")
    return with_settings(named, sizes) if sizes else named, " ".join(options)


def minutes(chosen: Trial, seconds: Seconds) -> float | None:
    """Return the minutes of a comparison, from the time of a step of both mechanisms."""
    if chosen.steps is None:
        return None
    steps = sum(seconds(chosen.recipe, name, chosen.num_heads) for name in (STANDARD, chosen.name))
    return SEEDS * chosen.steps * steps / 60.0


class Stepper:
    """Times training steps on random inputs.

    Args:
        device: that trains.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, recipe: Recipe, mechanism: str, num_heads: int) -> float:
        """Return the seconds of a step, the fastest within a second after a first one.

        Of a large batch some rows are timed, whose gradients take their share of the time.

        Raises:
            ConfigError: if the recipe cannot have the mechanism.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = recipe.build(mechanism, num_heads).to(self.device)
            work = 6 * sum(p.numel() for p in model.parameters()) * recipe.model.length
            batch = recipe.training.batch_size
            rows = min(batch, max(1, int(TIMED / work)))
            inputs, labels = _batch(recipe, rows)
            inputs, labels = inputs.map(lambda t: t.to(self.device)), labels.to(self.device)
            optimiser = build(model, recipe.training)
            self._step(model, inputs, labels, optimiser)
            times: list[tuple[float, float]] = []
            while sum(map(sum, times)) < 1.0:
                times.append(self._step(model, inputs, labels, optimiser))
            gradients, updates = map(min, zip(*times, strict=True))
            return gradients * batch / rows + updates

    def _step(
        self, model: Any, inputs: ModelInputs, labels: torch.Tensor, optimiser: Any
    ) -> tuple[float, float]:
        """Return the seconds of the gradients, and those of the update."""
        start = self._now()
        optimiser.zero_grad()
        logits, labels = flatten_answers(inputs.logits(model), labels)
        cross_entropy(logits, labels, reduction="mean").backward()
        middle = self._now()
        optimiser.step()
        return middle - start, self._now() - middle

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return perf_counter()


def _batch(recipe: Recipe, rows: int) -> tuple[ModelInputs, torch.Tensor]:
    """Return random inputs and labels of some rows of a recipe's data."""
    model = recipe.model
    if isinstance(model, ViTConfig):
        shape = rows, model.channels, model.image_size, model.image_size
        return ModelInputs(torch.randn(shape)), torch.randint(model.num_classes, (rows,))
    shape = rows, model.length
    if isinstance(model, TranslatorConfig):
        target = torch.randint(model.target_vocabulary_size, shape)
        source = torch.randint(model.source_vocabulary_size, shape)
        return ModelInputs(target, source=source), target
    ids = torch.randint(model.vocabulary_size, shape)
    if isinstance(model, LMConfig):
        return ModelInputs(ids), ids
    return ModelInputs(ids), torch.randint(model.num_classes, (rows,))
