"""The comparison that would decide whether a composition suffices, and what it costs here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from time import perf_counter
from typing import Any

import torch

from suffice.advise.evidence import DOUBLINGS, Scope
from suffice.advise.request import Base, resized
from suffice.measure.before import USUAL as SEEDS
from suffice.models import LMConfig, TranslatorConfig, ViTConfig
from suffice.models.composition import STANDARD, Composition
from suffice.models.lm import SkipInit
from suffice.recipes import ATLAS, Recipe, recipe
from suffice.recipes.own_data import with_settings
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
WIDEST = 1 << 14  # features of a model
SLACK = 1.15  # of parameters that are to be equal
LONG = (
    2e14  # FLOPs of a comparison, about an hour; instead of longer ones shorter ones that are near
)
Seconds = Callable[[Recipe, str], float]
"""Returns the seconds of a training step of a mechanism."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A comparison with Standard that nobody has run yet.

    Args:
        name: the composition that it is about.
        command: that runs it.
        trainings: how many.
        minutes: of all trainings on this machine, from the measured time of a training step; None =
            not measured, or the rows of the data are not known.
        bits: of weights or cache, whose price another command tells; None = none are packed.
    """

    name: str
    command: str
    trainings: int
    minutes: float | None = None
    bits: int | None = None

    @property
    def sentence(self) -> str:
        """The command with its cost."""
        cost = "of unknown length" if self.minutes is None else f"about {_duration(self.minutes)}"
        packed = "" if self.bits is None else f"; `{_quantise(self.bits)}` tells what the bits lose"
        return f"`{self.command}` ({self.trainings} trainings, {cost}){packed}"


def _duration(minutes: float) -> str:
    units = ((60.0 * 24, "days"), (60.0, "hours"), (1.0, "minutes"))
    size, unit = next((pair for pair in units if minutes >= 2 * pair[0]), units[-1])
    return f"{max(minutes / size, 1.0):.2g} {unit} on this machine"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The recipe of a comparison near what is asked for, and how it differs from the named one."""

    recipe: Recipe
    settings: tuple[tuple[str, int], ...] = ()

    def command(self, mechanism: str) -> str:
        """Return the command that compares a mechanism with Standard."""
        options = "".join(f" --set {name}={value}" for name, value in self.settings)
        name = self.recipe.name
        return f"suffice compare --recipe {name}{options} --mechanisms {STANDARD},{mechanism}"

    @property
    def rows(self) -> int | None:
        """Rows of the training split, None if they are not known before they are read."""
        given = dict(self.recipe.task_options).get("rows")
        if self.recipe.task == "text":
            return given or TOKENS // self.recipe.model.length
        return given or ROWS.get(self.recipe.task)

    @property
    def steps(self) -> int | None:
        """Optimiser steps of one training."""
        training = self.recipe.training
        return self.rows and training.epochs * ceil(self.rows / training.batch_size)

    @property
    def flops(self) -> float:
        """FLOPs of all trainings, six for each parameter and token."""
        scope = scope_of(self.recipe)
        rows = (self.rows or 0) * self.recipe.training.epochs * 2 * SEEDS
        return 6.0 * rows * scope.tokens * scope.parameters


@cache
def scope_of(recipe: Recipe) -> Scope:
    """Return the tokens of a recipe's inputs and the parameters of its model with Standard."""
    with torch.device("meta"), SkipInit():
        model = recipe.build(STANDARD, recipe.num_heads)
    parameters = sum(p.numel() for p in model.parameters())
    return Scope(tokens=recipe.model.length, parameters=parameters)


@cache
def setting(base: Base, asked: Scope) -> Setting:
    """Return the comparison of a request: as asked where that is short, else the shortest near it.

    Raises:
        ConfigError: if the recipe cannot have the sizes.
    """
    named = recipe(LANGUAGE if base.task == "lm" else base.name)
    whole = _at(named, base, asked)
    if whole.flops <= LONG:
        return whole
    tokens, parameters = (2**doublings for doublings in DOUBLINGS.values())
    few = max(ceil(asked.tokens / tokens), min(named.model.length, asked.tokens))
    least = Scope(tokens=few, parameters=ceil(SLACK * asked.parameters / parameters))
    of_atlas = (Setting(recipe=recipe(name)) for name in ATLAS)
    near = [
        one
        for one in of_atlas
        if one.recipe.task == named.task and scope_of(one.recipe).near(asked)
    ]
    return min((whole, _at(named, base, least), *near), key=lambda one: one.flops)


def _at(named: Recipe, base: Base, wanted: Scope) -> Setting:
    """Return a recipe at a length, with about as many parameters as wanted."""
    sizes: dict[str, int] = {}
    if isinstance(named.model, ViTConfig):
        image = resized(base.config, base.length).image_size
        if image != named.model.image_size:
            sizes["image_size"] = image
    elif wanted.tokens != named.model.length:
        sizes["length"] = wanted.tokens
    changed = with_settings(named, sizes) if sizes else named
    if not 1 / SLACK <= scope_of(changed).parameters / wanted.parameters <= 2.0:
        step = 8 * named.num_heads
        widths = range(step, WIDEST, step)

        def parameters(width: int) -> int:
            return scope_of(with_settings(named, {**sizes, "d_model": width})).parameters

        at = bisect_left(widths, wanted.parameters, key=parameters)
        sizes["d_model"] = widths[min(at, len(widths) - 1)]
        changed = with_settings(named, sizes)
    return Setting(recipe=changed, settings=tuple(sizes.items()))


def trial(composition: Composition, base: Base, asked: Scope) -> Trial | None:
    """Return the comparison of a composition; None where it would compare Standard with itself.

    Raises:
        ConfigError: as `setting`.

    What is changed after training is left out. A window keeps its share of the input.
    """
    chosen = setting(base, asked)
    trained = replace(composition, sinks=None, memory=None, weights=None)
    if trained.window is not None:
        share = chosen.recipe.model.length / asked.tokens
        trained = replace(trained, window=max(2, round(trained.window * share)))
    if trained.name == STANDARD:
        return None
    return Trial(
        name=composition.name,
        command=chosen.command(trained.name),
        trainings=2 * SEEDS,
        bits=composition.weights or composition.memory,
    )


def timed(found: Trial, base: Base, asked: Scope, seconds: Seconds) -> Trial:
    """Return a comparison with its minutes, from the time of a step of both mechanisms.

    Raises:
        ConfigError: if the recipe cannot have the composition.
    """
    chosen = setting(base, asked)
    if chosen.steps is None:
        return found
    mechanism = found.command.rpartition(",")[2]
    steps = sum(seconds(chosen.recipe, name) for name in (STANDARD, mechanism))
    return replace(found, minutes=SEEDS * chosen.steps * steps / 60.0)


class Stepper:
    """Times training steps on random inputs.

    Args:
        device: that trains.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, recipe: Recipe, mechanism: str) -> float:
        """Return the seconds of a step, the fastest within a second after a first one.

        Raises:
            ConfigError: if the recipe cannot have the mechanism.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = recipe.build(mechanism, recipe.num_heads).to(self.device)
            inputs, labels = _batch(recipe)
            inputs, labels = inputs.map(lambda t: t.to(self.device)), labels.to(self.device)
            optimiser = build(model, recipe.training)
            self._step(model, inputs, labels, optimiser)
            found: list[float] = []
            while sum(found) < 1.0:
                found.append(self._step(model, inputs, labels, optimiser))
            return min(found)

    def _step(self, model: Any, inputs: ModelInputs, labels: torch.Tensor, optimiser: Any) -> float:
        start = self._now()
        optimiser.zero_grad()
        logits, labels = flatten_answers(inputs.logits(model), labels)
        cross_entropy(logits, labels, reduction="mean").backward()
        optimiser.step()
        return self._now() - start

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return perf_counter()


def _batch(recipe: Recipe) -> tuple[ModelInputs, torch.Tensor]:
    """Return random inputs and labels of a recipe's batch."""
    model, rows = recipe.model, recipe.training.batch_size
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


def missing(composition: Composition, base: Base, asked: Scope) -> str:
    """Return the command that would produce evidence of a composition."""
    found = trial(composition, base, asked)
    if found is not None:
        return f"none: run `{found.command}`"
    bits = composition.weights or composition.memory
    if bits is None:
        return "none: the model is trained as Standard is, and forgets what the memory drops"
    return f"none: `{_quantise(bits)}` measures what a trained model loses"


def _quantise(bits: int) -> str:
    return f"suffice quantise DIR --bits {bits}"
