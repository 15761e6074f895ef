"""The recommendation in sentences, and what it does not say."""

from __future__ import annotations

from collections.abc import Iterator

from suffice.advise.base import Base
from suffice.advise.found import Found
from suffice.advise.race import FEWEST
from suffice.advise.rank import STANDARD, parts, sized, timed
from suffice.advise.request import Request, each

MORE = "give more minutes, or a smaller model or length"
RANDOM = "Weights are random: times are of these sizes on this machine, quality is not measured."


def sentence(found: Found, winner: str | None) -> str:
    """Return what to take, or why nothing is recommended and what comes nearest."""
    if winner is None:
        return _none(found)
    places = {place.name: place for place in found.places()}
    one = places[winner]
    count = sum(place.rank is not None for place in places.values())
    of = f"of {count} measured" if count > 1 else "the only one measured"
    took = f"{timed(one.seconds.median)} {each(found.limits.unit)}"
    needed = f"{sized(one.needs.total)} ({parts(one.needs)})"
    if winner == STANDARD:
        return (
            f"Stay with standard: {took}, {needed}; nothing that keeps to the limits was faster "
            f"beyond noise, {of}."
        )
    beside = "standard was not measured"
    if one.ratio is not None:
        beside = (
            f"{one.ratio.median:.2f}x Standard's (quartiles {one.ratio.low:.2f} to "
            f"{one.ratio.high:.2f})"
        )
    return f"Take {winner}: {took}, {beside}, {needed}; {_rank(found, winner)}, {of}."


def _rank(found: Found, winner: str) -> str:
    """Return how a winner stands to others of its rank."""
    ranks = found.ranks()
    tied = sum(rank == ranks[winner] for rank in ranks.values()) - 1
    first = "the fastest" if ranks[winner] == 1 else "the fastest that keeps to the limits"
    if not tied:
        return first
    return f"{first}, {tied} other{'s tie' if tied > 1 else ' ties'} with it"


def _none(found: Found) -> str:
    """Return why nothing is recommended, and what comes nearest."""
    if len(found.over) == len(found.candidates):
        near = min(found.needs, key=lambda name: (found.needs[name].total, name))
        told = found.needs[near]
        return (
            f"Nothing fits {sized(found.limits.memory)}: the nearest, {near}, needs "
            f"{sized(told.total)} ({parts(told)})."
        )
    ranks = [name for name in found.ranks() if name not in found.over]
    if not ranks:
        return f"Nothing that fits was measured: {MORE}."
    race = found.measured
    if not race.enough:
        return f"Nothing is recommended: {race.rounds} of {FEWEST} rounds; {MORE}."
    quick = [name for name in ranks if name not in found.lost]
    if not quick:
        return f"Everything measured loses too much: {ranks[0]}: {found.lost[ranks[0]]}."
    near = quick[0]
    if (told := found.limits.slow(race.times(near))) is not None:
        return f"Nothing measured is fast enough: the nearest is {near}, {told}."
    place = next(place for place in found.places() if place.name == near)
    return (
        "Nothing that keeps to the limits is as fast as Standard, which does not keep to them: the "
        f"nearest is {near}, {place.reason}."
    )


def notes(
    found: Found, winner: str | None, base: Base, request: Request, *, interrupted: bool
) -> tuple[str, ...]:
    """Return what else is to be known, a sentence each."""
    return tuple(_notes(found, winner, base, request, interrupted=interrupted))


def _notes(
    found: Found, winner: str | None, base: Base, request: Request, *, interrupted: bool
) -> Iterator[str]:
    if interrupted:
        yield "Interrupted: places are of what was measured until then."
    yield RANDOM
    ranks = found.ranks()
    ahead = next((name for name in ranks if name not in found.over), None)
    if winner is not None and ranks[winner] > ranks[ahead]:
        place = next(place for place in found.places() if place.name == ahead)
        yield f"{ahead} was faster, but is not recommended: {place.reason}."
    if winner is not None:
        yield from _of_winner(found, winner, base)
    if STANDARD in found.candidates and STANDARD not in found.race.samples:
        yield "Standard was not measured, so nothing is said of being faster than it."
    open_ = [p for p in found.places() if p.status == "not measured"]
    if open_:
        yield (
            f"{len(open_)} compositions were not measured: {request.minutes:g} minutes were given "
            f"to those that promise most by closed form; --minutes or --mechanisms reaches others."
        )


def _of_winner(found: Found, winner: str, base: Base) -> Iterator[str]:
    place = next(place for place in found.places() if place.name == winner)
    one = found.candidates[winner].composition
    if winner != STANDARD:
        yield f"Quality of {winner}: {place.evidence_told}."
    if one.sinks and base.writes:
        yield "The window and its sinks are of the memory: a model trained without them forgets."
    if place.crossover is not None and place.crossover.at is not None:
        yield f"It is faster than Standard from {place.crossover.at} on, of the lengths measured."
