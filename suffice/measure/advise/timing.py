"""Timing of candidates within a budget, and the price of the comparison that would decide."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from math import ceil
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from suffice.errors import SufficeError
from suffice.measure.advise.request import Base, Candidate, resized
from suffice.measure.edge.run import Writer
from suffice.measure.sequential import USUAL as SEEDS
from suffice.measure.timing import Times, summarise_times
from suffice.memory import Memory
from suffice.models import LMConfig, TranslatorConfig, ViTConfig
from suffice.models.composition import STANDARD, Composition
from suffice.models.kinds import Sizes, build_model
from suffice.models.lm import SkipInit
from suffice.quantise import quantise
from suffice.recipes import Recipe, recipe
from suffice.recipes.language import SIZES
from suffice.recipes.own_data import PICTURES, TABLE, with_settings
from suffice.train.evaluate import ModelInputs, cross_entropy, flatten_answers
from suffice.train.optimiser import build

ROUNDS, MIN_ROUNDS, MAX_ROUNDS = 5, 3, 15  # samples of each candidate


@dataclass(frozen=True, kw_only=True)
class TimedSample:
    """Seconds of one candidate, measured once."""

    each: float  # for one token that is written, or for one input where nothing is written
    first: float | None = None  # for reading the input before the first token


Take = Callable[[str], TimedSample]
Clock = Callable[[], float]
Report = Callable[[str, float], None]


class Budget:
    """The seconds that may be spent, counted from now."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.seconds, self.clock = seconds, clock
        self.start = clock()

    @property
    def used(self) -> float:
        """Seconds spent so far."""
        return self.clock() - self.start

    def left(self, share: float = 1.0) -> float:
        """Return the seconds left of the first share of the budget."""
        return self.seconds * share - self.used


@dataclass
class Race:
    """Samples of candidates, one for each round, compared with those of a baseline."""

    baseline: str
    samples: dict[str, list[TimedSample]] = field(default_factory=dict)
    walls: dict[str, float] = field(default_factory=dict)  # least seconds that a sample took
    failed: dict[str, str] = field(default_factory=dict)  # errors of unmeasured candidates

    @property
    def enough(self) -> bool:
        """Whether there are enough rounds to separate a difference from noise."""
        return self.rounds >= MIN_ROUNDS

    @property
    def rounds(self) -> int:
        """Complete rounds."""
        return min(map(len, self.samples.values()), default=0)

    def times(self, name: str) -> Times:
        """Return median and quartiles for a token or an input."""
        return summarise_times(self._seconds(name, "each"))

    def ratio(self, name: str) -> Times | None:
        """Return times over the baseline's of the same round; None without a baseline."""
        return self._ratio(name, "each")

    def first(self, name: str) -> float | None:
        """Return the median seconds of reading an input; None where nothing is written."""
        seconds = self._seconds(name, "first")
        return statistics.median(seconds) if seconds else None

    def first_ratio(self, name: str) -> Times | None:
        """Return the times of reading an input over the baseline's of the same round."""
        return self._ratio(name, "first")

    def _ratio(self, name: str, time: str) -> Times | None:
        seconds, baseline = self._seconds(name, time), self._seconds(self.baseline, time)
        if not seconds or not baseline:
            return None
        return summarise_times([a / b for a, b in zip(seconds, baseline, strict=True)])

    def _seconds(self, name: str, time: str) -> list[float]:
        samples = self.samples.get(name, [])[: self.rounds]
        return [value for s in samples if (value := getattr(s, time)) is not None]


def run(
    race: Race,
    names: Sequence[str],
    take: Take,
    budget: Budget,
    *,
    share: float = 1.0,
    most: int = MAX_ROUNDS,
    report: Report,
) -> None:
    """Measure the candidates that the budget has time for, the first ones first.

    Each is warmed up when it enters; then every round takes one sample of each, in a rotating
    order. Where no round is complete, the sample of the warm-up stands for it. Fills `race`, which
    is consistent at any moment, and uses the first `share` of the budget.
    """

    def timed(name: str) -> TimedSample:
        before = budget.used
        sample = take(name)
        wall = budget.used - before
        race.walls[name] = min(wall, race.walls.get(name, wall))
        return sample

    for name in names:
        expected = max(race.walls.values(), default=0.0)
        rounds = min(most, ROUNDS if len(race.walls) > 1 else MIN_ROUNDS)
        planned = (sum(race.walls.values()) + expected) * rounds + 2 * expected
        if planned > budget.left(share):
            break
        report(f"warming up {name}", budget.used / budget.seconds)
        try:
            take(name)
            race.samples[name] = [timed(name)]
        except SufficeError as error:
            race.failed[name] = str(error)
    entrants = list(race.walls)
    warm, race.samples = race.samples, {}
    try:
        for number in range(most if entrants else 0):
            if sum(race.walls.values()) > budget.left(share):
                return
            shift = number % len(entrants)
            samples: dict[str, TimedSample] = {}
            for name in entrants[shift:] + entrants[:shift]:
                if race.walls[name] > budget.left():
                    return
                report(f"round {number + 1}: {name}", budget.used / budget.seconds)
                samples[name] = timed(name)
            for name, sample in samples.items():
                race.samples.setdefault(name, []).append(sample)
    finally:
        race.samples = race.samples or warm


def race_lengths(
    names: Sequence[str],
    lengths: Sequence[int],
    take: Callable[[str, int], TimedSample],
    budget: Budget,
    by_length: dict[str, dict[int, Times]],
    report: Report,
) -> None:
    """Fill `by_length` with times over the first candidate's, by name and length."""
    for length in lengths:
        race = Race(baseline=names[0])
        run(
            race,
            names,
            partial(take, length=length),
            budget,
            most=MIN_ROUNDS,
            report=lambda text, used, length=length: report(f"{length} long: {text}", used),
        )
        for name in names[1:]:
            if race.enough and race.samples.get(name) and (ratio := race.ratio(name)) is not None:
                by_length.setdefault(name, {})[length] = ratio


def now(device: torch.device) -> float:
    """Return the seconds of a clock once a device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


NEW_TOKENS = 9  # written after an input; the first one ends the prefill
MIN_SECONDS = 5e-3  # of a sample; shorter calls are repeated


class CandidateTimer:
    """Times candidates on random inputs, one at a time."""

    def __init__(self, base: Base, device: torch.device) -> None:
        self.base, self.device = base, device
        self.tensors: dict[tuple[str, torch.Size], Tensor] = {}
        self.models: dict[object, Any] = {}
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, candidate: Candidate, length: int) -> TimedSample:
        """Return the times of a candidate for an input of a length, or for tokens after it."""
        model = self.model(candidate, length)
        with torch.inference_mode():
            return self._sample(model, candidate.memory, length)

    def _sample(self, model: Any, memory: Memory, length: int) -> TimedSample:
        config = model.config
        if isinstance(config, LMConfig):
            prompt = self._ids(config.vocabulary_size, length)
            run = Writer(model, memory).write(prompt, NEW_TOKENS)
            return TimedSample(each=statistics.median(run.token_seconds), first=run.prompt_seconds)
        if isinstance(config, TranslatorConfig):
            return self._translate(model, memory, length)
        if isinstance(config, ViTConfig):
            side = config.image_size
            inputs = torch.randn(1, config.channels, side, side, generator=self.generator)
            inputs = inputs.to(self.device)
        else:
            inputs = self._ids(config.vocabulary_size, length)[None]
        return TimedSample(each=self._seconds(lambda: model(inputs)))

    def _translate(self, model: Any, memory: Memory, length: int) -> TimedSample:
        config = model.config
        source = self._ids(config.source_vocabulary_size, length)[None]
        target = self._ids(config.target_vocabulary_size, length)[None]
        ticks = [now(self.device)]
        state = model.state(model.encode(source), memory=memory)
        features = model.features(target, state=state)
        for _ in range(NEW_TOKENS):
            token = model.logits(features[:, -1]).argmax(dim=-1)
            ticks.append(now(self.device))
            features = model.features(token[:, None], state=state)
        first, *each = (after - before for before, after in pairwise(ticks))
        return TimedSample(each=statistics.median(each), first=first)

    def _seconds(self, call: Callable[[], object]) -> float:
        start = now(self.device)
        call()
        seconds = now(self.device) - start
        repeats = ceil(MIN_SECONDS / max(seconds, 1e-9)) - 1
        if repeats < 1:
            return seconds
        start = now(self.device)
        for _ in range(repeats):
            call()
        return (now(self.device) - start) / repeats

    def _ids(self, vocabulary: int, length: int) -> Tensor:
        return torch.randint(vocabulary, (length,), generator=self.generator).to(self.device)

    def model(self, candidate: Candidate, length: int) -> Any:
        """Return the model of a candidate for inputs of a length, with random weights, cached.

        Models share tensors of equal names and shapes, such as embeddings and MLPs, unless packed.
        """
        config = self.base.config
        if isinstance(config, ViTConfig):  # other models read shorter inputs as they are
            config = resized(config, length)
        key = candidate.identity, config
        if key not in self.models:
            self.models[key] = self._build(candidate, config)
        return self.models[key]

    def _build(self, candidate: Candidate, config: Sizes) -> nn.Module:
        with torch.device("meta"), SkipInit():
            model: nn.Module = build_model(config, list(candidate.specs))
        weights = {name: self._tensor(name, like) for name, like in model.state_dict().items()}
        model.load_state_dict(weights, assign=True)
        model.requires_grad_(False).eval()
        if candidate.composition.weights is not None:
            quantise(model, bits=candidate.composition.weights)
        return model

    def _tensor(self, name: str, like: Tensor) -> Tensor:
        key = name, like.shape
        if key not in self.tensors:
            tensor = torch.zeros(like.shape, dtype=like.dtype, device="cpu")
            if like.dim() > 1:
                tensor.normal_(std=like.shape[-1] ** -0.5, generator=self.generator)
            elif name.endswith("weight"):  # of a norm
                tensor.fill_(1.0)
            self.tensors[key] = tensor.to(self.device)
        return self.tensors[key]


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
MAX_TIMED_FLOPS = 2e10  # FLOPs of a step that is timed; of larger batches some rows are
Seconds = Callable[[Recipe, str, int], float]
"""Returns the seconds of a training step of a mechanism with some heads."""


@dataclass(frozen=True, kw_only=True)
class DecidingComparison:
    """A comparison with Standard that nobody has run yet, of the sizes that are asked for."""

    name: str  # the composition that it is about
    recipe: Recipe  # recipe with the length and the sizes
    num_heads: int  # heads of both
    command: str  # command that runs it
    trainings: int = 2 * SEEDS  # number of trainings
    # minutes of all trainings on this machine, from the measured time of a training step; None if
    # not measured, or the rows of the data are not known
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


def trial(composition: Composition, base: Base) -> DecidingComparison | None:
    """Return the comparison of a composition; None where no training decides about it.

    That is so of Standard itself, and of what is changed after training.

    Raises:
        ConfigError: if the recipe cannot have the sizes.
    """
    if composition.of_use or composition.name == STANDARD:
        return None
    return DecidingComparison(
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


def minutes(chosen: DecidingComparison, seconds: Seconds) -> float | None:
    """Return the minutes of a comparison, from the time of a step of both mechanisms."""
    if chosen.steps is None:
        return None
    steps = sum(seconds(chosen.recipe, name, chosen.num_heads) for name in (STANDARD, chosen.name))
    return SEEDS * chosen.steps * steps / 60.0


class TrainingStepTimer:
    """Times training steps on random inputs.

    Args:
        device: device that trains.
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
            rows = min(batch, max(1, int(MAX_TIMED_FLOPS / work)))
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
        start = now(self.device)
        optimiser.zero_grad()
        logits, labels = flatten_answers(inputs.logits(model), labels)
        cross_entropy(logits, labels, reduction="mean").backward()
        middle = now(self.device)
        optimiser.step()
        return middle - start, now(self.device) - middle


def _batch(recipe: Recipe, rows: int) -> tuple[ModelInputs, torch.Tensor]:
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
