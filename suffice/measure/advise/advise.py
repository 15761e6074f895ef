"""`advise`: recommends a composition for a task on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch

from suffice.measure.advise.evidence import Library, Scope
from suffice.measure.advise.request import (
    ANY_DEVICE,
    ITEMSIZE,
    Base,
    Candidate,
    Request,
    base_of,
    candidates,
    needs,
    shorter,
)
from suffice.measure.advise.study import Place, Study
from suffice.measure.advise.usage import cli_lines, notes, python_lines, recommendation
from suffice.measure.advise.timing import (
    Budget,
    CandidateTimer,
    Clock,
    DecidingComparison,
    Report,
    Seconds,
    TimedSample,
    TrainingStepTimer,
    minutes,
    race_lengths,
    run,
    trial,
)
from suffice.measure.machine import machine_facts, software_versions
from suffice.models.composition import STANDARD, Composition
from suffice.train import Progress, resolve_device
from suffice.utils.records import encode

MAIN_SHARE = 0.7  # of the budget, for the requested length; the rest is for shorter ones
MAX_CROSSOVERS = 3  # candidates compared with Standard at shorter lengths
PROGRESS_STEPS = 1000  # of the progress bar
Measure = Callable[[Candidate, int], TimedSample]


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The recommendation, and everything it is based on."""

    request: Request  # the task and its limits
    model: str  # name of the model whose sizes were measured
    length: int  # tokens or patches of an input
    unit: str  # "token" or "input", which times are for
    device: str  # "cpu" or "cuda"
    winner: str | None  # name of the recommended composition; None if none is recommended
    # whether comparisons near what is asked show that it suffices; of Standard, that nothing
    # untried is faster
    known: bool
    # the comparison that would decide whether the fastest untried composition suffices; None if
    # there is none
    trial: DecidingComparison | None
    sentence: str  # the recommendation
    notes: tuple[str, ...]  # further sentences
    places: tuple[Place, ...]  # every composition: ranked, ruled out, not measured, illegal
    python: tuple[str, ...]  # lines that build and use the recommended model
    cli: tuple[str, ...]  # commands that do the same; () if none can
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
    measure: Measure | None = None,
    step: Seconds | None = None,
) -> Advice:
    """Measure the legal compositions within the memory limit, and recommend one.

    Ctrl-C ends the measuring; the advice is then based on what was measured.

    Args:
        request: the task and its limits.
        progress: display of the measurements.
        clock: function that returns seconds from any origin.
        measure: function that returns a sample of a candidate at a length; None: on the device.
        step: function that returns the seconds of a training step; None: on the device.

    Raises:
        ConfigError: for an unknown model or device, or an invalid composition.
        CheckpointError: if the checkpoint cannot be read.
        DataError: if results cannot be read.

    Example:
        >>> request = Request(task="image", model="digits_vit", mechanisms=("gqa",), minutes=0.01)
        >>> [place.name for place in advise(request).places]  # doctest: +SKIP
        ['gqa', 'standard']
    """
    budget = Budget(60.0 * request.minutes, clock)
    device = _device(request.device)
    base = base_of(request)
    study = _study(request, base, device)
    interrupted = False
    try:
        _measure(study, measure or CandidateTimer(base, device), budget, _reporter(progress))
        _price(study, step or TrainingStepTimer(device))
    except KeyboardInterrupt:
        interrupted = True
    winner = study.winner()
    best = None if winner is None else study.candidates[winner]
    return Advice(
        request=request,
        model=base.name,
        length=base.length,
        unit=request.unit,
        device=device.type,
        winner=winner,
        known=study.is_known(winner),
        trial=study.trial,
        sentence=recommendation(study, winner),
        notes=tuple(notes(study, winner, interrupted=interrupted)),
        places=study.places(),
        python=() if best is None else python_lines(best, base, request),
        cli=() if best is None else cli_lines(best, base, request),
        machine=machine_facts(),
        versions=software_versions(),
        seconds=budget.used,
        interrupted=interrupted,
    )


def _study(request: Request, base: Base, device: torch.device) -> Study:
    legal, illegal = candidates(base, request.mechanisms, packs=device.type == "cpu")
    needed = {candidate.name: needs(candidate, base) for candidate in legal}
    parameters = needed[STANDARD].weights // ITEMSIZE
    scope = Scope(tokens=base.length, parameters=parameters, num_heads=base.num_heads)
    library = Library(request.task, request.results, request.quality, scope)
    same: dict[object, list[Composition]] = {}  # under several names
    for candidate in legal:
        same.setdefault(candidate.identity, []).append(candidate.composition)
    return Study(
        request=request,
        base=base,
        asked=scope,
        candidates={candidate.name: candidate for candidate in legal},
        needs=needed,
        illegal=illegal,
        library=library,
        evidence={
            candidate.name: tuple(
                dict.fromkeys(e for c in same[candidate.identity] for e in library.find(c))
            )
            for candidate in legal
        },
        losses={
            candidate.name: loss
            for candidate in legal
            for composition in same[candidate.identity]
            if (loss := library.loss(composition))
        },
        available=_memory(device),
    )


def _measure(study: Study, measure: Measure, budget: Budget, report: Report) -> None:

    def take(name: str, length: int = study.base.length) -> TimedSample:
        return measure(study.candidates[name], length)

    run(study.race, study.order(), take, budget, share=MAIN_SHARE, report=report)
    if STANDARD in study.race.samples and (promising := study.promising()[:MAX_CROSSOVERS]):
        names, lengths = [STANDARD, *promising], shorter(study.base)
        race_lengths(names, lengths, take, budget, study.by_length, report)


def _price(study: Study, step: Seconds) -> None:
    """Name the comparison that would decide about the fastest untried, with its minutes."""
    name = study.untried()
    if name is None:
        return
    study.trial = trial(study.candidates[name].composition, study.base)
    if study.trial is not None:
        study.trial = replace(study.trial, minutes=minutes(study.trial, step))


def _device(name: str) -> torch.device:
    if name == ANY_DEVICE:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return resolve_device(name)


def _memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    total: Any = machine_facts()["memory_bytes"]
    return total


def _reporter(progress: Progress | None) -> Report:
    def report(text: str, share: float) -> None:
        if progress is not None:
            progress.say(text)
            progress.step(min(round(share * PROGRESS_STEPS), PROGRESS_STEPS), PROGRESS_STEPS)

    return report
