"""Times candidates round by round, within a budget of seconds."""

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

from suffice.advise.candidates import Candidate
from suffice.advise.request import Base, resized
from suffice.errors import SufficeError
from suffice.measure.edge.run import Writer
from suffice.measure.timing import Times, summarise_times
from suffice.memory import Memory
from suffice.models import LMConfig, TranslatorConfig, ViTConfig
from suffice.models.kinds import Sizes, build_model
from suffice.models.lm import SkipInit
from suffice.quantise import quantise

ROUNDS, FEWEST, MOST = 5, 3, 15  # samples of each candidate


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Seconds of one candidate, measured once."""

    each: float  # for one token that is written, or for one input where nothing is written
    first: float | None = None  # for reading the input before the first token


Take = Callable[[str], Sample]
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
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    walls: dict[str, float] = field(default_factory=dict)  # least seconds that a sample took
    failed: dict[str, str] = field(default_factory=dict)  # errors of unmeasured candidates

    @property
    def enough(self) -> bool:
        """Whether there are enough rounds to separate a difference from noise."""
        return self.rounds >= FEWEST

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
    most: int = MOST,
    report: Report,
) -> None:
    """Measure as many candidates as the budget has time for, the first ones first.

    Each is warmed up when it enters; then every round takes one sample of each, in a rotating
    order. Where no round is complete, the sample of the warm-up stands for it. Fills `race`, which
    is consistent at any moment, and uses the first `share` of the budget.
    """

    def timed(name: str) -> Sample:
        before = budget.used
        sample = take(name)
        wall = budget.used - before
        race.walls[name] = min(wall, race.walls.get(name, wall))
        return sample

    for name in names:
        expected = max(race.walls.values(), default=0.0)
        rounds = min(most, ROUNDS if len(race.walls) > 1 else FEWEST)
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
            samples: dict[str, Sample] = {}
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
    take: Callable[[str, int], Sample],
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
            most=FEWEST,
            report=lambda text, used, length=length: report(f"{length} long: {text}", used),
        )
        for name in names[1:]:
            if race.enough and race.samples.get(name) and (ratio := race.ratio(name)) is not None:
                by_length.setdefault(name, {})[length] = ratio


NEW_TOKENS = 9  # written after an input; the first one ends the prefill
MIN_SECONDS = 5e-3  # of a sample; shorter calls are repeated


class Sampler:
    """Times candidates on random inputs, one at a time."""

    def __init__(self, base: Base, device: torch.device) -> None:
        self.base, self.device = base, device
        self.tensors: dict[tuple[str, torch.Size], Tensor] = {}
        self.models: dict[object, Any] = {}
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, candidate: Candidate, length: int) -> Sample:
        """Return the times of a candidate for an input of a length, or for tokens after it."""
        model = self.model(candidate, length)
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
        """Time greedy steps of a translator after a target as long as the source."""
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
        start = self._now()
        call()
        seconds = self._now() - start
        repeats = ceil(MIN_SECONDS / max(seconds, 1e-9)) - 1
        if repeats < 1:
            return seconds
        start = self._now()
        for _ in range(repeats):
            call()
        return (self._now() - start) / repeats

    def _ids(self, vocabulary: int, length: int) -> Tensor:
        return torch.randint(vocabulary, (length,), generator=self.generator).to(self.device)

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return perf_counter()

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
        """Return the tensor of a name and shape; random maps preserve the scale of inputs."""
        key = name, like.shape
        if key not in self.tensors:
            tensor = torch.zeros(like.shape, dtype=like.dtype, device="cpu")
            if like.dim() > 1:
                tensor.normal_(std=like.shape[-1] ** -0.5, generator=self.generator)
            elif name.endswith("weight"):  # of a norm
                tensor.fill_(1.0)
            self.tensors[key] = tensor.to(self.device)
        return self.tensors[key]
