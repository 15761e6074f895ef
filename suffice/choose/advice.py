"""`advise`: recommends a composition for a task on this machine."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count, takewhile
from time import perf_counter
from typing import Any

import torch

from suffice.choose.bench import SHAPES
from suffice.choose.candidates import (
    Base,
    Candidate,
    Needs,
    base_of,
    candidates,
    format_bytes,
    needs,
)
from suffice.choose.evidence import Evidence, Library
from suffice.choose.request import ANY_DEVICE, Request
from suffice.choose.timing import (
    MIN_ROUNDS,
    CandidateTimer,
    Clock,
    DecidingComparison,
    Timings,
    command,
    minutes_of,
)
from suffice.comparison.report.tables import seconds as format_seconds
from suffice.comparison.sufficiency import UNDECIDED
from suffice.memory import Quantised, Rolling
from suffice.models.composition import STANDARD
from suffice.train import Progress, resolve_device
from suffice.utils.machine import machine_facts, software_versions
from suffice.utils.records import encode
from suffice.utils.timing import Times

MAX_EVIDENCE = 2  # comparisons of one composition, in sentences
PROGRESS_STEPS = 1000  # of the progress bar
MORE_TIME = "give more minutes, or a smaller model or length"


def each(unit: str) -> str:
    """Return "a token" or "an input"."""
    return "a token" if unit == "token" else f"an {unit}"


@dataclass(frozen=True, kw_only=True)
class Place:
    """One composition and its place."""

    name: str  # the composition, see `Composition`
    rank: int | None  # rank, from 1; candidates whose times overlap share one. None if not timed.
    status: str  # "measured", "ruled out", "illegal" or "not measured"
    reason: str  # what speaks against it; "" if nothing does
    needs: Needs | None = None  # bytes and work in closed form; None if illegal
    predicted: float | None = None  # work over Standard's; None if illegal
    seconds: Times | None = None  # seconds per token or input, median and quartiles over the rounds
    ratio: Times | None = None  # `seconds` over Standard's of the same round
    first_seconds: Times | None = None  # seconds of reading the input (prefill)
    first_ratio: Times | None = None  # `first_seconds` over Standard's of the same round
    rounds: int = 0  # number of samples
    evidence: tuple[Evidence, ...] = ()  # finished comparisons of quality
    evidence_told: str = ""  # sentences about its quality


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The recommendation, and everything it is based on."""

    request: Request  # the task and its limits
    model: str  # name of the model whose sizes were measured
    length: int  # tokens or patches of an input
    unit: str  # "token" or "input", which times are for
    device: str  # "cpu" or "cuda"
    winner: str | None  # name of the recommended composition; None if none is recommended
    known: bool  # whether comparisons show that it suffices; of Standard, that nothing is faster
    trial: DecidingComparison | None  # what would decide about the fastest untried composition
    sentence: str  # the recommendation
    notes: tuple[str, ...]  # further sentences
    places: tuple[Place, ...]  # every composition: ranked, ruled out, not measured, illegal
    cli: tuple[str, ...]  # commands that make and use the recommended model; () if none can
    machine: dict[str, Any]  # facts about the machine
    versions: dict[str, Any]  # versions of the software
    seconds: float  # total time of the advice
    interrupted: bool = False  # whether measuring was stopped early

    def find(self, name: str) -> Place | None:
        """Return the place of a composition, None if it was not considered."""
        return next((place for place in self.places if place.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return encode(dataclasses.asdict(self))


def advise(
    request: Request,
    *,
    progress: Progress | None = None,
    clock: Clock = perf_counter,
    timer: Callable[[Base, torch.device], CandidateTimer] = CandidateTimer,
) -> Advice:
    """Time the legal compositions within the memory limit, and recommend one.

    Ctrl-C ends the timing; the advice is then based on what was timed.

    Args:
        request: the task and its limits.
        progress: display of the timing.
        clock: function that returns seconds from any origin.
        timer: what times candidates of a model's sizes on a device.

    Raises:
        ConfigError: for an unknown model or device, or an invalid composition.
        CheckpointError: if the checkpoint cannot be read.
        DataError: if results cannot be read.

    Example:
        >>> request = Request(task="image", model="digits_vit", mechanisms=("gqa",), minutes=0.01)
        >>> [place.name for place in advise(request).places]  # doctest: +SKIP
        ['gqa', 'standard']
    """
    start, here = clock(), "cuda" if torch.cuda.is_available() else "cpu"
    device = resolve_device(here if request.device == ANY_DEVICE else request.device)
    study = _Study(request, device)
    times, interrupted = timer(study.base, device), False

    def report(name: str, share: float) -> None:
        if progress is not None:
            progress.say(f"timing {name}")
            progress.step(min(round(share * PROGRESS_STEPS), PROGRESS_STEPS), PROGRESS_STEPS)

    def step_seconds(rows: int) -> float:
        names = STANDARD, study.offer
        return sum(times.step_seconds(study.candidates[name], rows) for name in names)

    study.timings = Timings(lambda name: times.prepare(study.candidates[name]), report, clock)
    try:
        study.timings.run(study.order(), 60.0 * request.minutes)
        study.minutes = minutes_of(study.base, step_seconds) if study.offer else None
    except KeyboardInterrupt:
        interrupted = True
    winner = study.winner
    best = None if winner is None else study.candidates[winner]
    return Advice(
        request=request,
        model=study.base.name,
        length=study.base.length,
        unit=request.unit,
        device=device.type,
        winner=winner,
        known=study.known,
        trial=study.trial,
        sentence=study.sentence(),
        notes=tuple(study.notes(interrupted=interrupted)),
        places=study.places,
        cli=() if best is None else cli_lines(best, study.base, request),
        machine=machine_facts(),
        versions=software_versions(),
        seconds=clock() - start,
        interrupted=interrupted,
    )


class _Study:
    """The legal candidates by name, what they need, their times and their evidence."""

    def __init__(self, request: Request, device: torch.device) -> None:
        self.request, self.base = request, base_of(request)
        legal, self.illegal = candidates(self.base, request.mechanisms, packs=device.type == "cpu")
        self.candidates = {candidate.name: candidate for candidate in legal}
        self.needs = {name: needs(c, self.base) for name, c in self.candidates.items()}
        self.library = Library(request, self.base)
        losses = {name: self.library.loss(c) for name, c in self.candidates.items()}
        self.losses = {name: loss for name, loss in losses.items() if loss}
        self.available = _memory(device)
        self.limit = request.memory or self.available
        self.oversized = [
            n for n, need in self.needs.items() if self.limit and need.total > self.limit
        ]
        self.timings: Timings  # filled by `advise`
        self.minutes: float | None = None  # of the comparison with the offer

    def order(self) -> list[str]:
        """Return the names to time: Standard if it fits the machine, then the others.

        What suffices comes first, what loses too much last. Between them trained and packed
        compositions take turns, numbers of changes within each, and packings and mechanisms within
        those, by least work: a short budget is spread from published mechanisms to the most
        changed.
        """
        names = [name for name in self.candidates if name not in {*self.oversized, STANDARD}]
        names.sort(key=lambda name: (self.needs[name].work, name))
        groups: dict[str, tuple[Any, ...]] = {}  # from the widest to the narrowest
        for name in names:
            c = self.candidates[name].composition
            groups[name] = (bool(c.of_use), len(c.changes), (c.memory, c.weights), c.mechanism)
        for depth in (4, 3, 2, 1):
            counters: dict[object, Iterator[int]] = defaultdict(count)
            turns = {name: next(counters[groups[name][:depth]]) for name in names}
            names.sort(key=lambda name: (turns[name], groups[name][:2]))
        names.sort(key=lambda name: (name in self.losses, not self.suffices(name)))
        fits = self.available is None or self.needs[STANDARD].total <= self.available
        return [STANDARD, *names] if fits else names

    def suffices(self, name: str) -> bool:
        return self.library.suffices(self.candidates[name])

    def of_use(self, name: str) -> bool:
        """Return whether a candidate changes how a trained model is run."""
        return bool(self.candidates[name].composition.of_use)

    def against(self, name: str) -> list[str]:
        """Return what speaks against recommending a timed or oversized candidate."""
        reasons, ratio, reading = [], self.timings.ratio(name), self.timings.ratio(name, "first")
        if name in self.oversized:
            total = self.needs[name].total
            reasons.append(f"needs {format_bytes(total)}, more than {format_bytes(self.limit)}")
        seconds, latency = self.timings.of(name), self.request.latency
        if latency and seconds and seconds.median > latency:
            time = f"{format_seconds(seconds.median)} {each(self.request.unit)}"
            reasons.append(f"takes {time}, more than {format_seconds(latency)}")
        if name != STANDARD and ratio is not None and ratio.low > 1.0:
            reasons.append("is slower than Standard")
        if name != STANDARD and reading is not None and reading.low > 1.0:
            reasons.append(f"reads the input in {reading.median:.2f}x Standard's time")
        if (loss := self.losses.get(name)) and loss.own:
            reasons.append(f"loses too much: {loss.sentence}")
        return reasons

    def is_faster(self, name: str) -> bool:
        """Return whether a candidate is faster than Standard by more than noise."""
        ratio = self.timings.ratio(name)
        return name != STANDARD and ratio is not None and ratio.high < 1.0

    @cached_property
    def ranked(self) -> dict[str, int]:
        """Ranks of the timed candidates, best first; overlapping quartiles share one."""
        timings = self.timings
        names = [name for name in self.candidates if timings.of(name)]
        names.sort(key=lambda n: (timings.key(n), len(self.candidates[n].composition.changes), n))
        ranks: dict[str, int] = {}
        leader = None
        for number, name in enumerate(names, start=1):
            times = timings.ratio(name) or timings.of(name)
            if leader and times.low <= leader[1].high and leader[1].low <= times.high:
                ranks[name] = leader[0]
            else:
                ranks[name], leader = number, (number, times)
        return ranks

    @cached_property
    def qualifying(self) -> list[str]:
        """The candidates that were timed in enough rounds and have nothing against them."""
        rounds = {name: len(self.timings.samples.get(name, ())) for name in self.ranked}
        return [n for n in self.ranked if rounds[n] >= MIN_ROUNDS and not self.against(n)]

    @cached_property
    def winner(self) -> str | None:
        """The fastest known to suffice, else Standard; beyond the limits the least changed."""
        others = [name for name in self.qualifying if name != STANDARD]
        known = [name for name in others if self.suffices(name)]
        if self.timings.of(STANDARD) is not None and not self.against(STANDARD):
            return next(filter(self.is_faster, known), STANDARD)

        def changed(name: str) -> tuple[bool, int]:
            composition = self.candidates[name].composition
            return composition.mechanism != STANDARD, len(composition.changes)

        untried = [n for n in others if not self.of_use(n) and n not in self.losses]
        return known[0] if known else min(untried or others, key=changed, default=None)

    @cached_property
    def offer(self) -> str | None:
        """The fastest untried candidate above the winner: those that lose elsewhere come last."""
        winner = self.winner
        if winner is not None and not self.suffices(winner):
            return None if self.of_use(winner) else winner
        above = takewhile(lambda name: name != winner, self.qualifying)
        faster = [name for name in above if self.is_faster(name) and not self.of_use(name)]
        return min(faster, key=lambda name: name in self.losses, default=None)

    @property
    def trial(self) -> DecidingComparison | None:
        if self.offer is None:
            return None
        text = command(self.base, STANDARD, self.offer)
        return DecidingComparison(name=self.offer, command=text, minutes=self.minutes)

    @property
    def known(self) -> bool:
        """Whether the recommendation rests on comparisons, or nothing untried is faster."""
        if self.winner == STANDARD:
            return self.offer is None and len(self.timings.samples) > 1
        return self.winner is not None and self.suffices(self.winner)

    def sentence(self) -> str:
        """Return the recommendation."""
        winner, too_short = (
            self.winner,
            f"{self.request.minutes:g} minutes were too short to time others; {MORE_TIME}",
        )
        if winner is None:
            return f"Nothing is recommended: {self._nearest(too_short)}."
        if winner != STANDARD and self.suffices(winner):
            words = f"Take {winner}, which suffices by your own comparison"
        elif winner != STANDARD:
            why = " and ".join(self.against(STANDARD)) or "was not timed"
            words = f"Take {winner}, the least changed within the limits, untried: standard {why}"
        elif self.offer:
            words = (
                f"Stay with standard unless a comparison shows that {self.offer} suffices, which "
                f"takes {self.time(self.offer)}"
            )
        elif len(self.timings.samples) > 1:
            words = "Stay with standard: nothing that could replace it is faster by more than noise"
        else:
            words = f"Stay with standard: {too_short}"
        needed = self.needs[winner]
        return (
            f"{words}. {winner[0].upper()}{winner[1:]} takes {self.time(winner)} and needs "
            f"{format_bytes(needed.total)} ({needed})."
        )

    def _nearest(self, too_short: str) -> str:
        fits = [name for name in self.ranked if name not in self.oversized]
        if len(self.oversized) == len(self.candidates):
            nearest = min(self.needs, key=lambda name: (self.needs[name].total, name))
            return f"{nearest}, the smallest, {'; '.join(self.against(nearest))}"
        if self.timings.samples and fits:
            return f"{fits[0]}, the fastest within the memory, {'; '.join(self.against(fits[0]))}"
        standard = f"standard {'; '.join(self.against(STANDARD))}, and " if self.ranked else ""
        return f"{standard}{too_short}"

    def time(self, name: str) -> str:
        """Return a candidate's time, and its ratio to Standard's, as text."""
        ratio = self.timings.ratio(name)
        text = f"{format_seconds(self.timings.of(name).median)} {each(self.request.unit)}"
        if name == STANDARD or ratio is None:
            return text
        return f"{text}, {ratio.median:.2f}x Standard's ({ratio.low:.2f} to {ratio.high:.2f})"

    def notes(self, *, interrupted: bool) -> Iterator[str]:
        """Yield sentences about the recommendation and what was not timed."""
        if interrupted:
            yield "Interrupted: places are of what was timed until then."
        for folder, why in self.library.unheard.items():
            yield f"--results {folder} is not evidence for this request: {why}."
        for name in dict.fromkeys((self.winner, self.offer)):
            if name not in (None, STANDARD):
                yield f"Quality of {name}: {self.quality(name)}."
        fast = [n for n in self.ranked if self.is_faster(n) and n not in (self.winner, self.offer)]
        for name in fast[:1]:
            if against := "; ".join(self.against(name)):
                yield f"{name} takes {self.time(name)}, but {against}."
        for name in [n for n in fast if n in self.qualifying and self.of_use(n)][:1]:
            changes = f"changes a trained model: {self.quality(name)}"
            yield f"{name} takes {self.time(name)}, but {changes}."
        yield "Times are of random weights; quality is what comparisons say, nothing is predicted."
        rest = [place for place in self.places if place.rank is None]
        for status, number in Counter(place.status for place in rest).items():
            example = next(place for place in rest if place.status == status)
            yield f"{number} {status}, such as {example.name}: {example.reason}."

    def quality(self, name: str) -> str:
        """Return what comparisons show of a candidate, the decided ones first."""
        candidate = self.candidates[name]
        part, found = self.library.about(candidate)
        alone = "" if part == name else f"not compared{f'; {part} alone ' * bool(part)}"
        found = sorted(found, key=lambda one: one.verdict.startswith(UNDECIDED))
        texts = [f"{alone}{'; '.join(one.sentence for one in found[:MAX_EVIDENCE])}"]
        if (more := len(found) - MAX_EVIDENCE) > 0:
            texts.append(f"and {more} more, which --json lists")
        if (bits := candidate.composition.weights) is not None:
            texts.append(
                f"`suffice quantise DIR --bits {bits}` measures what a trained model loses"
            )
        return "; ".join(texts)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The place of every composition: ranked, then ruled out or not timed, then illegal."""
        rest = [name for name in (*self.oversized, *self.order()) if name not in self.ranked]
        illegal = (
            Place(name=name, rank=None, status="illegal", reason=reason.rstrip("."))
            for name, reason in sorted(self.illegal.items())
        )
        return (*map(self._place, (*self.ranked, *rest)), *illegal)

    def _place(self, name: str) -> Place:
        timings, rank = self.timings, self.ranked.get(name)
        predicted = self.needs[name].work / self.needs[STANDARD].work
        reason, status = "; ".join(self.against(name)), "measured"
        if name in self.oversized:
            status = "ruled out"
        elif rank is None:
            work = f"by closed form {predicted:.2f}x Standard's work"
            reason = timings.failed.get(name, f"the time ended before its turn; {work}")
            status = "not measured"
        return Place(
            name=name,
            rank=rank,
            status=status,
            reason=reason.rstrip("."),
            needs=self.needs[name],
            predicted=predicted,
            seconds=timings.of(name),
            ratio=timings.ratio(name),
            first_seconds=timings.of(name, "first"),
            first_ratio=timings.ratio(name, "first"),
            rounds=len(timings.samples.get(name, ())),
            evidence=self.library.find(self.candidates[name]),
            evidence_told="it is the yardstick" if name == STANDARD else self.quality(name),
        )


def _memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    total: Any = machine_facts()["memory_bytes"]
    return total


def cli_lines(candidate: Candidate, base: Base, request: Request) -> tuple[str, ...]:
    """Return commands that train, convert or compare a composition; () if none can."""
    composition = candidate.composition
    if base.task != "lm":
        names = dict.fromkeys((STANDARD, composition.name))
        return () if composition.of_use else (command(base, *names),)
    steps = _convert(candidate, request) if request.checkpoint else _train(candidate, base)
    if steps is None:
        return ()
    folder, lines = steps
    if composition.weights is not None:
        packed = f"{folder}-{composition.weights}bit"
        lines.append(f"suffice quantise {folder} --bits {composition.weights} --out {packed}")
        folder = packed
    memory, options = candidate.memory, ""
    if isinstance(memory, Quantised):
        values = "" if memory.value_bits is None else f":{memory.value_bits}"
        options, memory = f" --quantise-memory {memory.bits}{values}", memory.inner
    if isinstance(memory, Rolling):
        sinks = f":{memory.sinks}" if memory.sinks else ""
        options = f" --memory rolling:{memory.window}{sinks}{options}"
    return (*lines, f"suffice generate {folder}{options}")


def _train(candidate: Candidate, base: Base) -> tuple[str, list[str]]:
    composition = candidate.composition
    settings = {
        "configuration": SHAPES.get(base.name, base.name),
        "length": base.length,
        "num_kv_heads": composition.kv,
        "softmax_every": composition.softmax,
        "window": None if composition.sinks else composition.window,
        "full_every": composition.full,
    }
    options = " ".join(f"--set {name}={n}" for name, n in settings.items() if n is not None)
    recipe = f"--recipe stdlib_bpe --mechanism {composition.mechanism}"
    return "model", [f"suffice train {recipe} {options} --out model"]


def _convert(candidate: Candidate, request: Request) -> tuple[str, list[str]] | None:
    composition = candidate.composition
    mechanism, heads = composition.mechanism, composition.kv
    if composition.softmax is not None or composition.full is not None:
        return None
    if mechanism in ("gqa", "mqa"):
        heads = candidate.specs[0].kv_heads
    elif mechanism not in ("standard", "optimised", "efficient"):
        return None
    steps = [] if heads is None else [f"gqa:{heads}"]
    steps += [mechanism] if mechanism in ("optimised", "efficient") else []
    if composition.window is not None and not composition.sinks:
        steps.append(f"window:{composition.window}+sinks:0")
    folder = shlex.quote(str(request.checkpoint))
    if not steps:
        return folder, []
    return "converted", [f"suffice convert {folder} --to {','.join(steps)} --out converted"]
