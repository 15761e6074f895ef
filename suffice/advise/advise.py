"""`advise`: recommends a composition for a task on this machine."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from suffice.advise.candidates import Candidate, candidates
from suffice.advise.comparison import Seconds, Stepper, timed, trial
from suffice.advise.evidence import Evidence, Library, Scope
from suffice.advise.needs import ITEMSIZE, needs
from suffice.advise.parts import Effects, Prediction, near, parts
from suffice.advise.race import Budget, Clock, Report, Sample, Sampler, race_lengths, run
from suffice.advise.ranking import Advice, Study
from suffice.advise.request import HERE, Base, Request, base_of, shorter
from suffice.advise.text import cli_lines, notes, python_lines, recommendation
from suffice.measure.machine import machine_facts, software_versions
from suffice.models.composition import STANDARD, Composition
from suffice.train import Progress, resolve_device

MAIN_SHARE = 0.7  # of the budget, for the requested length; the rest is for shorter ones
COMPARED = 3  # candidates compared with Standard at shorter lengths
STEPS = 1000  # of the progress bar
Measure = Callable[[Candidate, int], Sample]


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
        progress: shows what is being measured.
        clock: returns seconds from any origin.
        measure: returns one sample of a candidate at a length; None = measured on the device.
        step: returns the seconds of a training step; None = measured on the device.

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
        _measure(study, measure or Sampler(base, device), budget, _reporter(progress))
        _price(study, step or Stepper(device))
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
    asked = Scope(tokens=base.length, parameters=needed[STANDARD].weights // ITEMSIZE)
    words = (request.results, request.quality, asked)
    library = Library(request.task, *words)
    memories = Library(request.task, *words, recalls=True) if request.recall else None
    same: dict[object, list[Composition]] = {}  # under several names
    for one in legal:
        same.setdefault(one.identity, []).append(one.composition)

    def evidence(known: Library) -> dict[str, tuple[Evidence, ...]]:
        return {
            one.name: tuple(dict.fromkeys(e for c in same[one.identity] for e in known.find(c)))
            for one in legal
        }

    losses = {
        one.name: lost
        for one in legal
        for known in (library, memories)
        for composition in same[one.identity]
        if known is not None and (lost := known.loss(composition))
    }
    return Study(
        request=request,
        base=base,
        asked=asked,
        candidates={candidate.name: candidate for candidate in legal},
        needs=needed,
        illegal=illegal,
        evidence=evidence(library),
        recall=None if memories is None else evidence(memories),
        predictions=_predictions(legal, base, asked),
        losses=losses,
        available=_memory(device),
    )


def _predictions(legal: list[Candidate], base: Base, asked: Scope) -> dict[str, Prediction | None]:
    """Return what the parts of every candidate predict, from the tables near what is asked."""
    found = near(asked)
    if not found:
        return dict.fromkeys((candidate.name for candidate in legal), None)
    fitted, plain = Effects(found), base.specs(Composition(mechanism=STANDARD))
    return {one.name: fitted.predict(parts(one.specs, plain, base.length)) for one in legal}


def _measure(study: Study, measure: Measure, budget: Budget, report: Report) -> None:
    """Measure at the requested length, then at shorter ones."""

    def take(name: str, length: int = study.base.length) -> Sample:
        return measure(study.candidates[name], length)

    run(study.race, study.order(), take, budget, share=MAIN_SHARE, report=report)
    if STANDARD in study.race.samples and (promising := study.promising()[:COMPARED]):
        names, lengths = [STANDARD, *promising], shorter(study.base)
        race_lengths(names, lengths, take, budget, study.by_length, report)


def _price(study: Study, step: Seconds) -> None:
    """Name the comparison that would decide whether the fastest suffices, with its minutes."""
    name = study.beside()
    if name is None:
        return
    composition = study.candidates[name].composition
    study.trial = trial(composition, study.base, study.asked)
    if study.trial is not None:
        study.trial = timed(study.trial, study.base, study.asked, step)


def _device(name: str) -> torch.device:
    if name == HERE:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return resolve_device(name)


def _memory(device: torch.device) -> int | None:
    """Return the bytes of a device, None where they are unknown."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    total: Any = machine_facts()["memory_bytes"]
    return total


def _reporter(progress: Progress | None) -> Report:
    def report(text: str, share: float) -> None:
        if progress is not None:
            progress.say(text)
            progress.step(min(round(share * STEPS), STEPS), STEPS)

    return report
