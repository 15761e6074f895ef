"""Measures candidates in turn, within a budget of time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import ceil
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from suffice.advise.composition import Candidate
from suffice.advise.request import Base, resized
from suffice.errors import SufficeError
from suffice.measure.edge.run import Writer
from suffice.measure.timing import Times, summarise_times
from suffice.memory import Memory
from suffice.models import LMConfig, TranslatorConfig, ViTConfig
from suffice.models.lm import SkipInit
from suffice.quantise import quantise
from suffice.recipes.recipe import Sizes, build_model


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Seconds of one candidate, measured once.

    Args:
        each: of a token that is written, or of an input where none is.
        first: of reading the input before the first token; None where nothing is written.
    """

    each: float
    first: float | None = None


ROUNDS, FEWEST, MOST = 5, 3, 15  # samples of each candidate
Take = Callable[[str], Sample]
Clock = Callable[[], float]
Report = Callable[[str, float], None]


class Budget:
    """Seconds that may be spent.

    Args:
        seconds: in all.
        clock: seconds from any origin.
    """

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.seconds, self.clock = seconds, clock
        self.start = clock()

    @property
    def used(self) -> float:
        """Seconds that are spent."""
        return self.clock() - self.start

    def left(self, share: float = 1.0) -> float:
        """Return the seconds left of a share of it, from its beginning."""
        return self.seconds * share - self.used


@dataclass
class Race:
    """Samples of candidates, round by round.

    Args:
        baseline: the candidate that the others are compared with.
        samples: of each candidate that is measured; as many of each, one for each round.
        walls: seconds of a whole sample of each, the least so far.
        left_out: who was not measured, as the budget was too small for one more.
        failed: who could not be measured, and why.
    """

    baseline: str
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    walls: dict[str, float] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def enough(self) -> bool:
        """Whether there are enough rounds to tell a difference from noise."""
        return self.rounds >= FEWEST

    @property
    def rounds(self) -> int:
        """Complete rounds."""
        return min(map(len, self.samples.values()), default=0)

    def times(self, name: str) -> Times:
        """Return median and quartiles of a token or an input."""
        return summarise_times([sample.each for sample in self._complete(name)])

    def ratio(self, name: str) -> Times | None:
        """Return the time over the baseline's of the same round: median and quartiles.

        None where the baseline was not measured.
        """
        return self._ratio(name, "each")

    def first(self, name: str) -> float | None:
        """Return the median seconds of reading an input; None where nothing is written."""
        seconds = [s.first for s in self._complete(name) if s.first is not None]
        return statistics.median(seconds) if seconds else None

    def first_ratio(self, name: str) -> Times | None:
        """Return the same over the baseline's of the same round."""
        return self._ratio(name, "first")

    def _ratio(self, name: str, time: str) -> Times | None:
        seconds, baseline = (
            [value for s in self._complete(one) if (value := getattr(s, time)) is not None]
            for one in (name, self.baseline)
        )
        if not seconds or not baseline:
            return None
        return summarise_times([a / b for a, b in zip(seconds, baseline, strict=True)])

    def _complete(self, name: str) -> list[Sample]:
        return self.samples.get(name, [])[: self.rounds]


def run(
    race: Race,
    names: Sequence[str],
    take: Take,
    budget: Budget,
    *,
    share: float = 1.0,
    most: int = MOST,
    report: Report,
) -> None:
    """Measure as many candidates as the budget has time for, the first ones first.

    Each is warmed up when it enters; then every round takes one sample of each, in a rotating
    order. Where no round is complete, the sample of the warm-up stands for it. `race` is consistent
    at any moment, so an interruption leaves something to use.

    Args:
        race: filled here.
        names: candidates, the baseline first, then the most promising.
        take: gives one sample.
        budget: of all that is measured.
        share: of the budget that is for this, from its beginning.
        most: rounds.
        report: called with what is measured and the share of the budget that is used.
    """
    _warm_up(race, names, take, budget, share, min(most, ROUNDS), report)
    entrants = list(race.walls)
    if not entrants:
        return
    warm, race.samples = race.samples, {}
    try:
        for number in range(most):
            if sum(race.walls.values()) > budget.left(share):
                break
            turn = number % len(entrants)
            samples: dict[str, Sample] = {}
            for name in entrants[turn:] + entrants[:turn]:
                if race.walls[name] > budget.left():
                    return
                report(f"round {number + 1}: {name}", budget.used / budget.seconds)
                samples[name] = _timed(race, name, take, budget)
            for name, sample in samples.items():
                race.samples.setdefault(name, []).append(sample)
    finally:
        race.samples = race.samples or warm


def _warm_up(
    race: Race,
    names: Sequence[str],
    take: Take,
    budget: Budget,
    share: float,
    wanted: int,
    report: Report,
) -> None:
    """Let candidates enter as long as there is time for the rounds of all of them."""
    for i, name in enumerate(names):
        expected = max(race.walls.values(), default=0.0)
        rounds = wanted if len(race.walls) > 1 else min(wanted, FEWEST)
        planned = (sum(race.walls.values()) + expected) * rounds + 2 * expected
        if planned > budget.left(share):
            race.left_out = list(names[i:])
            return
        report(f"warming up {name}", budget.used / budget.seconds)
        try:
            take(name)
            race.samples[name] = [_timed(race, name, take, budget)]
        except SufficeError as error:
            race.failed[name] = str(error)


def _timed(race: Race, name: str, take: Take, budget: Budget) -> Sample:
    """Take a sample and note its wall time."""
    before = budget.used
    sample = take(name)
    wall = budget.used - before
    race.walls[name] = min(wall, race.walls.get(name, wall))
    return sample


def race_lengths(
    names: Sequence[str],
    lengths: Sequence[int],
    take: Callable[[str, int], Sample],
    budget: Budget,
    by_length: dict[str, dict[int, Times]],
    report: Report,
) -> None:
    """Measure times over the first candidate's at several lengths, the shortest first.

    Args:
        names: Standard, and who is compared with it.
        lengths: to measure at.
        take: gives one sample of a candidate at a length.
        budget: of all that is measured.
        by_length: filled here, by name and length.
        report: as of `run`.
    """
    for length in lengths:
        race = Race(baseline=names[0])
        run(
            race,
            names,
            partial(take, length=length),
            budget,
            most=FEWEST,
            report=partial(_report_length, report, length),
        )
        for name in names[1:]:
            if race.enough and race.samples.get(name) and (ratio := race.ratio(name)) is not None:
                by_length.setdefault(name, {})[length] = ratio


def _report_length(report: Report, length: int, text: str, share: float) -> None:
    report(f"{length} long: {text}", share)


NEW_TOKENS = 9  # written behind an input; the first one ends the prefill
MIN_SECONDS = 5e-3  # of a sample of short calls


class Sampler:
    """Times candidates on random inputs, one at a time.

    Args:
        base: the sizes.
        device: where models run.
    """

    def __init__(self, base: Base, device: torch.device) -> None:
        self.base, self.device = base, device
        self.models = Models(base, device)
        self.generator = torch.Generator().manual_seed(1)

    def __call__(self, candidate: Candidate, length: int) -> Sample:
        """Return the times of a candidate behind an input of a length, or for it."""
        model = self.models.get(candidate, length)
        with torch.inference_mode():
            return self._sample(model, candidate.memory, length)

    def _sample(self, model: Any, memory: Memory, length: int) -> Sample:
        config = model.config
        if isinstance(config, LMConfig):
            prompt = self._ids(config.vocabulary_size, length)
            run = Writer(model, memory).write(prompt, NEW_TOKENS)
            return Sample(each=statistics.median(run.token_seconds), first=run.prompt_seconds)
        if isinstance(config, TranslatorConfig):
            return self._translate(model, memory, length)
        if isinstance(config, ViTConfig):
            side = config.image_size
            inputs = torch.randn(1, config.channels, side, side, generator=self.generator)
            inputs = inputs.to(self.device)
        else:
            inputs = self._ids(config.vocabulary_size, length)[None]
        return Sample(each=self._seconds(lambda: model(inputs)))

    def _translate(self, model: Any, memory: Memory, length: int) -> Sample:
        """Time a translator's greedy steps behind a target as long as the source."""
        config = model.config
        source = self._ids(config.source_vocabulary_size, length)[None]
        target = self._ids(config.target_vocabulary_size, length)[None]
        ticks = [self._now()]
        state = model.state(model.encode(source), memory=memory)
        features = model.features(target, state=state)
        for _ in range(NEW_TOKENS):
            token = model.logits(features[:, -1]).argmax(dim=-1)
            ticks.append(self._now())
            features = model.features(token[:, None], state=state)
        first, *each = (after - before for before, after in pairwise(ticks))
        return Sample(each=statistics.median(each), first=first)

    def _seconds(self, call: Callable[[], object]) -> float:
        """Return the seconds of a call; short calls are repeated."""
        start = self._now()
        call()
        once = self._now() - start
        times = ceil(MIN_SECONDS / max(once, 1e-9)) - 1
        if times < 1:
            return once
        start = self._now()
        for _ in range(times):
            call()
        return (self._now() - start) / times

    def _ids(self, vocabulary: int, length: int) -> Tensor:
        return torch.randint(vocabulary, (length,), generator=self.generator).to(self.device)

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return perf_counter()


class Models:
    """Models with random weights, built when they are first needed and then cached.

    Tensors of equal names and shapes are one tensor: embeddings and MLPs are there once, whatever
    the attention. Packed weights are each model's own.

    Args:
        base: the sizes.
        device: where the weights lie.
    """

    def __init__(self, base: Base, device: torch.device) -> None:
        self.base, self.device = base, device
        self.tensors: dict[tuple[str, torch.Size], Tensor] = {}
        self.models: dict[object, Any] = {}
        self.generator = torch.Generator().manual_seed(0)

    def get(self, candidate: Candidate, length: int) -> Any:
        """Return the model of a candidate for inputs of a length, ready to evaluate."""
        config = self.base.config
        if isinstance(config, ViTConfig):  # the others read shorter inputs as they are
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
        """Return the tensor of a name and shape, drawn so that maps preserve the scale."""
        key = name, like.shape
        if key not in self.tensors:
            tensor = torch.zeros(like.shape, dtype=like.dtype, device="cpu")
            if like.dim() > 1:
                tensor.normal_(std=like.shape[-1] ** -0.5, generator=self.generator)
            elif name.endswith("weight"):  # of a norm
                tensor.fill_(1.0)
            self.tensors[key] = tensor.to(self.device)
        return self.tensors[key]
