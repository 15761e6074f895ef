"""Candidates measured in turn, within a budget of time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from suffice.models import LMConfig, TranslatorConfig, ViTConfig
from suffice.models.lm import SkipInit
from suffice.quantise import quantise
from suffice.recipes.recipe import Sizes, build_model


class Models:
    """Models with random weights, each made when it is asked for and then kept.

    Tensors of equal names and shapes are one tensor: embeddings and MLPs are there once, whatever
    the attention. Packed weights are each model's own.

    Args:
        base: the sizes.
        device: where the weights lie.
    """

    def __init__(self, base: Base, device: torch.device) -> None:
        self.base, self.device = base, device
        self.shared: dict[tuple[str, torch.Size], Tensor] = {}
        self.made: dict[object, Any] = {}
        self.generator = torch.Generator().manual_seed(0)

    def of(self, one: Candidate, length: int) -> Any:
        """Return the model of a candidate for inputs of a length, ready to evaluate."""
        config = self.base.config
        if isinstance(config, ViTConfig):  # the others read shorter inputs as they are
            config = resized(config, length)
        key = one.same_as, config
        if key not in self.made:
            self.made[key] = self._make(one, config)
        return self.made[key]

    def _make(self, one: Candidate, config: Sizes) -> nn.Module:
        with torch.device("meta"), SkipInit():
            model: nn.Module = build_model(config, list(one.specs))
        weights = {name: self._tensor(name, like) for name, like in model.state_dict().items()}
        model.load_state_dict(weights, assign=True)
        model.requires_grad_(False).eval()
        if one.composition.weights is not None:
            quantise(model, bits=one.composition.weights)
        return model

    def _tensor(self, name: str, like: Tensor) -> Tensor:
        """Return the tensor of a name and shape; maps keep the size of what they are given."""
        key = name, like.shape
        if key not in self.shared:
            drawn = torch.zeros(like.shape, dtype=like.dtype, device="cpu")
            if like.dim() > 1:
                drawn.normal_(std=like.shape[-1] ** -0.5, generator=self.generator)
            elif name.endswith("weight"):  # of a norm
                drawn.fill_(1.0)
            self.shared[key] = drawn.to(self.device)
        return self.shared[key]


NEW = 9  # tokens written behind an input; the first one ends the reading
SHORTEST = 5e-3  # seconds that a sample of short calls lasts


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Seconds of one candidate, measured once.

    Args:
        each: of a token that is written, or of an input where none is.
        first: of reading the input before the first token; None where nothing is written.
    """

    each: float
    first: float | None = None


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

    def __call__(self, one: Candidate, length: int) -> Sample:
        """Return the times of a candidate behind an input of a length, or for it."""
        model = self.models.of(one, length)
        with torch.inference_mode():
            return self._sample(model, one, length)

    def _sample(self, model: Any, one: Candidate, length: int) -> Sample:
        config = model.config
        if isinstance(config, LMConfig):
            run = Writer(model, one.memory).write(self._ids(config.vocabulary_size, length), NEW)
            return Sample(each=statistics.median(run.token_seconds), first=run.prompt_seconds)
        if isinstance(config, TranslatorConfig):
            return self._translated(model, one, length)
        if isinstance(config, ViTConfig):
            side = config.image_size
            given = torch.randn(1, config.channels, side, side, generator=self.generator)
            given = given.to(self.device)
        else:
            given = self._ids(config.vocabulary_size, length)[None]
        return Sample(each=self._seconds(lambda: model(given)))

    def _translated(self, model: Any, one: Candidate, length: int) -> Sample:
        """Return the times of a translator's greedy steps behind a target as long as the source."""
        config = model.config
        source = self._ids(config.source_vocabulary_size, length)[None]
        target = self._ids(config.target_vocabulary_size, length)[None]
        ticks = [self._now()]
        state = model.state(model.encode(source), memory=one.memory)
        features = model.features(target, state=state)
        for _ in range(NEW):
            token = model.logits(features[:, -1]).argmax(dim=-1)
            ticks.append(self._now())
            features = model.features(token[:, None], state=state)
        first, *each = (after - before for before, after in pairwise(ticks))
        return Sample(each=statistics.median(each), first=first)

    def _seconds(self, call: Callable[[], object]) -> float:
        """Return the seconds of a call, of so many that the sample is not too short."""
        start = self._now()
        call()
        once = self._now() - start
        times = ceil(SHORTEST / max(once, 1e-9)) - 1
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


ROUNDS, FEWEST, MOST = 5, 3, 15  # samples of each candidate
Take = Callable[[str], Sample]
Clock = Callable[[], float]
Tell = Callable[[str, float], None]


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
        """Seconds that are gone."""
        return self.clock() - self.start

    def left(self, share: float = 1.0) -> float:
        """Return the seconds left of a share of it, from its beginning."""
        return self.seconds * share - self.used


@dataclass
class Race:
    """Samples of candidates, round by round.

    Args:
        baseline: who the others are held against.
        samples: of each candidate that is measured; as many of each, one for each round.
        walls: seconds that a sample of each took in all, the least so far.
        left_out: who was next when the budget was too small for one more.
        failed: who could not be measured, and why.
    """

    baseline: str
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    walls: dict[str, float] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def enough(self) -> bool:
        """Whether there are rounds enough to tell a difference from noise."""
        return self.rounds >= FEWEST

    @property
    def rounds(self) -> int:
        """Rounds that are whole."""
        return min(map(len, self.samples.values()), default=0)

    def times(self, name: str) -> Times:
        """Return median and quartiles of a token or an input."""
        return summarise_times(self._each(name))

    def ratio(self, name: str) -> Times | None:
        """Return the time over the baseline's of the same round: median and quartiles.

        None where the baseline was not measured.
        """
        if not self.samples.get(self.baseline):
            return None
        pairs = zip(self._each(name), self._each(self.baseline), strict=True)
        return summarise_times([a / b for a, b in pairs])

    def first(self, name: str) -> float | None:
        """Return the median seconds of reading an input; None where nothing is written."""
        found = [s.first for s in self._whole(name) if s.first is not None]
        return summarise_times(found).median if found else None

    def first_ratio(self, name: str) -> Times | None:
        """Return the same over the baseline's of the same round."""
        ours, theirs = (
            [s.first for s in self._whole(one) if s.first is not None]
            for one in (name, self.baseline)
        )
        if not ours or not theirs:
            return None
        return summarise_times([a / b for a, b in zip(ours, theirs, strict=True)])

    def _whole(self, name: str) -> list[Sample]:
        return self.samples.get(name, [])[: self.rounds]

    def _each(self, name: str) -> list[float]:
        return [sample.each for sample in self._whole(name)]


def run(
    race: Race,
    names: Sequence[str],
    take: Take,
    budget: Budget,
    *,
    share: float = 1.0,
    most: int = MOST,
    tell: Tell,
) -> None:
    """Measure as many candidates as the budget has time for, the first ones first.

    Each is warmed up when it is let in; then every round takes one sample of each, in an order
    that turns. Where no round is whole, a sample of the warming up stands for it. What is in `race`
    is whole at any moment.

    Args:
        race: filled here; what an interruption leaves in it can be used.
        names: candidates, the baseline first, then the most promising.
        take: gives one sample.
        budget: of all that is measured.
        share: of the budget that is for this, from its beginning.
        most: rounds.
        tell: told what is done and which share of the budget is used.
    """
    _let_in(race, names, take, budget, share, min(most, ROUNDS), tell)
    runners = list(race.walls)
    if not runners:
        return
    warm, race.samples = race.samples, {}
    try:
        for number in range(most):
            if sum(race.walls.values()) > budget.left(share):
                break
            turn = number % len(runners)
            found = _round(race, runners[turn:] + runners[:turn], take, budget, tell)
            if len(found) < len(runners):
                break
            for name, sample in found.items():
                race.samples.setdefault(name, []).append(sample)
    finally:
        race.samples = race.samples or warm


def _round(
    race: Race, order: Sequence[str], take: Take, budget: Budget, tell: Tell
) -> dict[str, Sample]:
    """Take one sample of each; fewer where the budget ends meanwhile."""
    found: dict[str, Sample] = {}
    for name in order:
        if race.walls[name] > budget.left():
            break
        tell(f"round {len(race.samples.get(name, ())) + 1}: {name}", budget.used / budget.seconds)
        found[name] = _timed(race, name, take, budget)
    return found


def _let_in(
    race: Race,
    names: Sequence[str],
    take: Take,
    budget: Budget,
    share: float,
    wanted: int,
    tell: Tell,
) -> None:
    """Warm up candidates as long as all that are in can have their rounds."""
    for at, name in enumerate(names):
        next_one = max(race.walls.values(), default=0.0)
        rounds = wanted if len(race.walls) > 1 else min(wanted, FEWEST)
        planned = (sum(race.walls.values()) + next_one) * rounds + 2 * next_one
        if planned > budget.left(share):
            race.left_out = list(names[at:])
            return
        tell(f"warming up {name}", budget.used / budget.seconds)
        try:
            take(name)
            race.samples[name] = [_timed(race, name, take, budget)]
        except SufficeError as error:
            race.failed[name] = str(error)


def _timed(race: Race, name: str, take: Take, budget: Budget) -> Sample:
    """Take a sample and note how long that took in all."""
    before = budget.used
    sample = take(name)
    wall = budget.used - before
    race.walls[name] = min(wall, race.walls.get(name, wall))
    return sample
