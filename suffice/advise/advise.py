"""`advise`: which composition to take for a task on this machine."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from suffice.advise.candidates import Candidate, candidates, needs
from suffice.advise.evidence import Library
from suffice.advise.race import Budget, Clock, Sample, Sampler, run
from suffice.advise.ranking import STANDARD, Advice, Found, Limits, at_lengths, lost_quality
from suffice.advise.request import HERE, Base, Request, base_of, shorter
from suffice.advise.text import cli_lines, notes, python_lines, sentence
from suffice.measure.machine import machine_facts, software_versions
from suffice.train import Progress, resolve_device

MAIN = 0.7  # of the budget, for the length asked for; the rest is for shorter ones
COMPARED = 3  # candidates held against Standard at shorter lengths
STEPS = 1000  # of the progress
Taking = Callable[[Candidate, int], Sample]


def advise(
    request: Request,
    *,
    progress: Progress | None = None,
    clock: Clock = perf_counter,
    take: Taking | None = None,
) -> Advice:
    """Measure what is legal and small enough, and say what to take.

    An interruption (Ctrl-C) ends the measuring; the advice is then of what was measured.

    Args:
        request: the task and its limits.
        progress: told what is measured.
        clock: seconds from any origin.
        take: gives one sample of a candidate at a length; None = measured on the device.

    Raises:
        ConfigError: for an unknown model or device, or a composition that has no meaning.
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
    library = Library(request.task, request.results, request.quality)
    found = _considered(request, base, device, library)
    taking = take or Sampler(base, device)
    interrupted = False
    try:
        _measure(found, base, taking, budget, _teller(progress))
    except KeyboardInterrupt:
        interrupted = True
    winner = found.winner()
    one = None if winner is None else found.candidates[winner]
    return Advice(
        request=request,
        model=base.name,
        length=base.length,
        unit=request.unit,
        device=device.type,
        winner=winner,
        sentence=sentence(found, winner),
        notes=notes(found, winner, base, request, interrupted=interrupted),
        places=found.places(),
        python=() if one is None else python_lines(one, base, request),
        cli=() if one is None else cli_lines(one, base, request),
        machine=machine_facts(),
        versions=software_versions(),
        seconds=budget.used,
        interrupted=interrupted,
    )


def _considered(request: Request, base: Base, device: torch.device, library: Library) -> Found:
    """Return every candidate with what it needs and what is known of it."""
    legal, illegal = candidates(base, request.mechanisms, packs=device.type == "cpu")
    evidence = {one.name: library.of(one.composition) for one in legal}
    limits = Limits(
        memory=request.memory or _memory(device), latency=request.latency, unit=request.unit
    )
    return Found(
        base=base,
        limits=limits,
        candidates={one.name: one for one in legal},
        needs={one.name: needs(one, base) for one in legal},
        illegal=illegal,
        evidence=evidence,
        lost=lost_quality(evidence, request.quality),
        measurable=_memory(device),
    )


def _measure(
    found: Found, base: Base, taking: Taking, budget: Budget, tell: Callable[[str, float], None]
) -> None:
    """Fill in what is measured: at the length asked for, then at shorter ones."""

    def take(name: str, length: int) -> Sample:
        return taking(found.candidates[name], length)

    run(
        found.race,
        found.order(),
        lambda name: take(name, base.length),
        budget,
        share=MAIN,
        tell=tell,
    )
    if found.race.rounds and STANDARD in found.race.samples:
        ahead = found.ahead()[:COMPARED]
        if ahead:
            names = [STANDARD, *ahead]
            at_lengths(names, shorter(base), take, budget, found.by_length, tell)


def _device(name: str) -> torch.device:
    """Return the device a request names; "here" is a GPU where there is one."""
    if name == HERE:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return resolve_device(name)


def _memory(device: torch.device) -> int | None:
    """Return the bytes that a device has, where that can be learnt."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    told: Any = machine_facts()["memory_bytes"]
    return told


def _teller(progress: Progress | None) -> Callable[[str, float], None]:
    """Return what tells the progress: the budget that is used, and what is under way."""

    def tell(what: str, share: float) -> None:
        if progress is not None:
            progress.say(what)
            progress.step(min(round(share * STEPS), STEPS), STEPS)

    return tell
