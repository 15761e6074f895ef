"""Timing of candidates and Standard, and the comparison that would decide about one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from math import ceil, inf
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from suffice.choose.bench import Writer
from suffice.choose.candidates import Base, Candidate
from suffice.comparison.sufficiency import USUAL as SEEDS
from suffice.errors import SufficeError
from suffice.models import LMConfig, TranslatorConfig, ViTConfig
from suffice.models.composition import STANDARD
from suffice.models.kinds import build_model
from suffice.models.lm import SkipInit
from suffice.quantise import quantise
from suffice.train.recipes import Recipe, recipe
from suffice.train.recipes.language import SIZES
from suffice.train.recipes.own_data import PICTURES, TABLE, with_settings
from suffice.utils.timing import Times, interleave, ratios, summarise_times, synchronise

HEAT = 6  # candidates in the same rounds, Standard among them
ROUNDS, MIN_ROUNDS, MAX_ROUNDS = 5, 3, 15  # samples of a candidate
NEW_TOKENS = 9  # written after an input; the first one ends its reading
MIN_SECONDS = 5e-3  # of a sample; shorter calls are repeated


@dataclass(frozen=True, kw_only=True)
class Sample:
    each: float  # for one token that is written, or for one input where nothing is written
    first: float | None = None  # for reading the input before the first token


Call = Callable[[], Sample]
Clock = Callable[[], float]


@dataclass
class Timings:
    """Samples of candidates, each with Standard's of the same round."""

    prepare: Callable[[str], Call]  # builds a candidate and returns what times it once
    report: Callable[[str, float], None]  # receives a name and the share of the time that is used
    clock: Clock = perf_counter
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    baseline: dict[str, list[Sample]] = field(default_factory=dict)  # of Standard, by candidate
    failed: dict[str, str] = field(default_factory=dict)  # errors of candidates
    warm: list[Sample] = field(default_factory=list)  # Standard's first call, before any round
    calls: dict[str, Call] = field(default_factory=dict)
    walls: dict[str, float] = field(default_factory=dict)  # least seconds of a call
    start: float = 0.0
    end: float = 0.0

    def run(self, names: Sequence[str], seconds: float) -> None:
        """Time candidates until the seconds are used up, the first ones first.

        A few are timed together with Standard in the same rounds, then the next few; then the
        fastest again. What is timed is consistent at any moment.
        """
        self.start = self.clock()
        self.end = self.start + seconds
        standard = [name for name in names[:1] if name == STANDARD and self._enter(name)]
        rest = [name for name in names if name != STANDARD]
        while rest:
            heat = list(standard)
            while rest and len(heat) < HEAT and (len(heat) < 2 or self._rounds(heat) > MIN_ROUNDS):
                name = rest.pop(0)
                heat += [name] if self.clock() < self.end and self._enter(name) else []
            while len(heat) > len(standard) + 1 and self._rounds(heat) < MIN_ROUNDS:
                heat.pop()
            rounds = self._rounds(heat)
            if heat == standard or rounds < MIN_ROUNDS:
                return
            taken: dict[str, list[Sample]] = {name: [] for name in heat}
            calls = {name: partial(self._take, name, taken[name]) for name in heat}
            # calls time themselves, since reading and writing are timed apart: one is a sample
            once = {"warmup": 0, "min_seconds_per_sample": 1e-9}
            interleave(calls, rounds=rounds, clock=self.clock, **once)
            for name in heat:
                self.samples.setdefault(name, []).extend(taken[name][-rounds:])
                for other in standard:
                    self.baseline.setdefault(name, []).extend(taken[other][-rounds:])
            rest = rest or self._fastest()

    def _take(self, name: str, samples: list[Sample]) -> None:
        before = self.clock()
        self.report(name, (before - self.start) / (self.end - self.start))
        samples.append(self.calls[name]())
        self.walls[name] = min(self.clock() - before, self.walls.get(name, inf))

    def _enter(self, name: str) -> bool:
        try:
            if name not in self.calls:
                self.calls[name] = self.prepare(name)
                self._take(name, self.warm if name == STANDARD else [])
        except SufficeError as error:
            self.failed[name] = str(error)
        return name not in self.failed

    def _rounds(self, heat: list[str]) -> int:
        wall = max(sum(self.walls[name] for name in heat), 1e-9)
        return min(ROUNDS, int((self.end - self.clock()) / wall) - 1)

    def _fastest(self) -> list[str]:
        names = {n for n, taken in self.samples.items() if len(taken) < MAX_ROUNDS} - {STANDARD}
        return sorted(names, key=lambda name: (self.key(name), name))[: HEAT - 1]

    def of(self, name: str, what: str = "each") -> Times | None:
        """Return median and quartiles of a candidate's seconds; None where there are none."""
        first = self.warm if name == STANDARD else ()
        seconds = _seconds(self.samples.get(name, first), what)
        return summarise_times(seconds) if seconds else None

    def ratio(self, name: str, what: str = "each") -> Times | None:
        """Return the seconds over Standard's of the same round; None where it was not there."""
        mine, its = (_seconds(s.get(name, []), what) for s in (self.samples, self.baseline))
        return summarise_times(ratios(mine, its)) if mine and its else None

    def key(self, name: str) -> float:
        """Return what candidates are ordered by: the ratio to Standard, else the seconds."""
        times = self.ratio(name) or self.of(name)
        return inf if times is None else times.median


def _seconds(samples: Sequence[Sample], what: str) -> list[float]:
    return [value for sample in samples if (value := getattr(sample, what)) is not None]


class CandidateTimer:
    """Times candidates on random inputs with random weights."""

    def __init__(self, base: Base, device: torch.device) -> None:
        self.base, self.device = base, device
        self.tensors: dict[tuple[str, torch.Size], Tensor] = {}
        self.generator = torch.Generator().manual_seed(0)

    def now(self) -> float:
        """Return the seconds of a clock once the device has done all its work."""
        synchronise(str(self.device))
        return perf_counter()

    def prepare(self, candidate: Candidate) -> Call:
        """Return what times a candidate once: an input, or an input and tokens after it."""
        model, inputs = self.model(candidate), self.inputs(1)
        if isinstance(self.base.config, LMConfig):
            writer = Writer(model, candidate.memory)
            return lambda: self._written(writer, inputs[0][0])
        if isinstance(self.base.config, TranslatorConfig):
            return lambda: self._translated(model, candidate, *inputs)
        return lambda: Sample(each=self.seconds(lambda: model(*inputs)))

    def step_seconds(self, candidate: Candidate, rows: int) -> float:
        """Return the seconds of a training step: three times those of a forward pass."""
        model, inputs = self.model(candidate), self.inputs(rows)
        return 3.0 * self.seconds(lambda: model(*inputs))

    def inputs(self, rows: int) -> tuple[Tensor, ...]:
        """Return random inputs of the requested length: images, token ids, or source and target."""
        config = self.base.config
        if isinstance(config, ViTConfig):
            shape = rows, config.channels, config.image_size, config.image_size
            return (torch.randn(shape, generator=self.generator).to(self.device),)
        names = ("source_vocabulary_size", "target_vocabulary_size", "vocabulary_size")
        sizes = [getattr(config, name) for name in names if hasattr(config, name)]
        shape = rows, self.base.length
        ids = (torch.randint(size, shape, generator=self.generator) for size in sizes)
        return tuple(tensor.to(self.device) for tensor in ids)

    def _written(self, writer: Writer, prompt: Tensor) -> Sample:
        run = writer.write(prompt, NEW_TOKENS)
        return Sample(each=statistics.median(run.token_seconds), first=run.prompt_seconds)

    @torch.inference_mode()
    def _translated(
        self, model: Any, candidate: Candidate, source: Tensor, target: Tensor
    ) -> Sample:
        ticks = [self.now()]
        state = model.state(model.encode(source), memory=candidate.memory)
        features = model.features(target, state=state)
        for _ in range(NEW_TOKENS):
            token = model.logits(features[:, -1]).argmax(dim=-1)
            ticks.append(self.now())
            features = model.features(token[:, None], state=state)
        first, *each = (after - before for before, after in pairwise(ticks))
        return Sample(each=statistics.median(each), first=first)

    @torch.inference_mode()
    def seconds(self, call: Callable[[], object]) -> float:
        """Return the seconds of a call, which is repeated if it is short."""
        repeats = 1
        while True:
            start = self.now()
            for _ in range(repeats):
                call()
            seconds = self.now() - start
            if seconds >= MIN_SECONDS:
                return seconds / repeats
            repeats = max(2 * repeats, ceil(repeats * MIN_SECONDS / max(seconds, 1e-9)))

    def model(self, candidate: Candidate) -> Any:
        """Return the model of a candidate.

        Models share tensors of equal names and shapes, such as embeddings and MLPs, unless packed.
        """
        with torch.device("meta"), SkipInit():
            model: nn.Module = build_model(self.base.config, list(candidate.specs))
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
MAX_TOKENS = 4_096  # in a timed batch; the rest of a larger one takes its share of the time


@dataclass(frozen=True, kw_only=True)
class DecidingComparison:
    """A comparison with Standard that nobody has run yet, of the sizes that are asked for."""

    name: str  # the composition that it is about
    command: str  # command that runs it
    trainings: int = 2 * SEEDS  # number of trainings
    minutes: float | None = None  # of all trainings here; None where that is not known

    def __str__(self) -> str:
        if self.minutes is None:
            return f"{self.trainings} trainings"
        units = ((60.0 * 24, "days"), (60.0, "hours"), (1.0, "minutes"))
        size, unit = next((pair for pair in units if self.minutes >= 2 * pair[0]), units[-1])
        number = max(1.0, float(f"{self.minutes / size:.2g}"))
        return f"{self.trainings} trainings, about {number:,.0f} {unit} on this machine"


def minutes_of(base: Base, step_seconds: Callable[[int], float]) -> float | None:
    """Return the minutes of all trainings of a comparison; None where its rows are not known.

    `step_seconds` are those of a training step of both models together, by rows of the batch.
    """
    chosen, _ = _setting(base)
    rows = dict(chosen.task_options).get("rows") or ROWS.get(chosen.task)
    if chosen.task == "text" and rows is None:
        rows = TOKENS // chosen.model.length
    if rows is None:
        return None
    batch = chosen.training.batch_size
    steps = chosen.training.epochs * ceil(rows / batch)
    timed = min(batch, max(1, MAX_TOKENS // chosen.model.length))
    return SEEDS * steps * step_seconds(timed) * batch / timed / 60.0


def command(base: Base, *names: str) -> str:
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
