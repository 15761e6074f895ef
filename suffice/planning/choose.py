"""Which layout of a step to recommend."""

from __future__ import annotations

from dataclasses import dataclass, replace

from suffice.planning.asked import Asked
from suffice.planning.roofline import Time
from suffice.planning.trace import Trace
from suffice.planning.ways import Way, Ways
from suffice.planning.work import Work

MOST_GPUS = 4096


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One layout and what it needs.

    Args:
        way: the layout.
        memory: bytes of a rank at the fullest moment.
        fits: whether that is within what is usable.
        time: of a step.
    """

    way: Way
    memory: int
    fits: bool
    time: Time


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Bytes of one rank; not all are there at once.

    Args:
        parameters: weights, as they are stored.
        gradients: of them.
        optimiser: two moments of each.
        activations: what a micro-batch keeps for its backward pass.
        other: of the fullest moment, what none of these is: gathered weights, DDP's buckets,
            results under way.
        peak: the fullest moment.
        state: what attention keeps of one row of full length when writing; 0 = it does not write.
    """

    parameters: int
    gradients: int
    optimiser: int
    activations: int
    other: int
    peak: int
    state: int


def choose(ways: Ways, asked: Asked, usable: int) -> tuple[tuple[Choice, ...], Parts]:
    """Return the best layout of each kind, the recommended one first, and what that needs.

    Args:
        ways: what each layout needs.
        asked: what is decided already.
        usable: bytes of a rank.
    """
    sizes = _sizes(ways.work, asked)
    found = [_largest(ways, kind, sizes, usable) for kind in _kinds(ways.work, asked)]
    best = min(found, key=_rank)
    while True:
        exact = ways.exact(best.way)
        memory = exact.peak + _buckets(ways, best.way, exact)
        fits = memory <= usable
        tighter = [n for n in sizes if n > best.way.accumulate]
        if fits or not best.fits or not tighter:
            break
        best = _choice(ways, _with(ways.work, best.way, tighter[0], asked.gpus), usable)
    others = (one for one in found if _kind(one.way) != _kind(best.way))
    best = replace(best, memory=memory, fits=fits)
    return (best, *sorted(others, key=_rank)), _parts(ways, best, exact)


def fewest(ways: Ways, asked: Asked, usable: int) -> int | None:
    """Return from how many GPUs on something fits, a power of two; None = never.

    Gathered weights are taken to need what they need on the GPUs asked for.
    """
    most = min(ways.work.rows // (asked.accumulate or 1), MOST_GPUS)
    for gpus in (2**power for power in range(most.bit_length())):
        kinds = _kinds(ways.work, replace(asked, gpus=gpus))
        if any(_some_size_fits(ways, kind, gpus, asked, usable) for kind in kinds):
            return gpus
    return None


def _some_size_fits(
    ways: Ways, kind: tuple[bool, bool], gpus: int, asked: Asked, usable: int
) -> bool:
    way = _first(kind)
    sizes = _sizes(ways.work, replace(asked, gpus=gpus))
    ends = {sizes[0], sizes[-1]}  # the fewest rows, or no gradients that wait
    return any(ways.bytes_of(_with(ways.work, way, size, gpus), gpus) <= usable for size in ends)


def _kinds(work: Work, asked: Asked) -> list[tuple[bool, bool]]:
    """Return the pairs (shard, checkpointing) that are open."""
    shards = [False, True] if asked.shard is None else [asked.shard]
    again = [False, True] if asked.checkpointing is None else [asked.checkpointing]
    if not work.free:
        return [(False, False)]
    return [(s, c) for s in shards for c in again if asked.gpus > 1 or not s]


def _sizes(work: Work, asked: Asked) -> list[int]:
    """Return how many micro-batches a step can have, the fewest first."""
    if asked.accumulate is not None:
        return [asked.accumulate]
    most = work.rows // asked.gpus if work.free else 1
    return sorted({min(2**power, most) for power in range(most.bit_length() + 1)})


def _with(work: Work, way: Way, accumulate: int, gpus: int) -> Way:
    """Return a layout with so many micro-batches."""
    micro = -(-work.rows // accumulate)
    return replace(way, accumulate=accumulate, rows=-(-micro // gpus))


def _largest(ways: Ways, kind: tuple[bool, bool], sizes: list[int], usable: int) -> Choice:
    """Return the layout of a kind with the largest micro-batches that fit, else the smallest."""
    way = _first(kind)
    found = [_choice(ways, _with(ways.work, way, size, ways.gpus), usable) for size in sizes]
    return next((one for one in found if one.fits), min(found, key=lambda one: one.memory))


def _first(kind: tuple[bool, bool]) -> Way:
    """Return a layout of a kind, its micro-batches still to be said."""
    return Way(shard=kind[0], checkpointing=kind[1], accumulate=1, rows=1)


def _choice(ways: Ways, way: Way, usable: int) -> Choice:
    memory = ways.bytes_of(way)
    return Choice(way=way, memory=memory, fits=memory <= usable, time=ways.time_of(way))


def _rank(choice: Choice) -> tuple[bool, float]:
    """Order what fits by time, then what does not by memory."""
    middle = sum(choice.time.bounds)
    return not choice.fits, middle if choice.fits else float(choice.memory)


def _kind(way: Way) -> tuple[bool, bool]:
    return way.shard, way.checkpointing


def _buckets(ways: Ways, way: Way, exact: Trace) -> int:
    """Return the bytes in which DDP exchanges gradients, a second copy of all of them."""
    return exact.gradients if ways.gpus > 1 and not way.shard else 0


def _parts(ways: Ways, best: Choice, exact: Trace) -> Parts:
    told = (exact.parameters, exact.gradients, exact.optimiser, exact.activations)
    specs = ways.work.specs if ways.work.writes else ()
    number = 2 if ways.work.dtype == "bfloat16" else 4
    return Parts(
        parameters=exact.parameters,
        gradients=exact.gradients,
        optimiser=exact.optimiser,
        activations=exact.activations,
        other=max(best.memory - sum(told), 0),
        peak=best.memory,
        state=sum(
            one.cost(ways.work.tokens).state_bytes(ways.work.tokens, number) for one in specs
        ),
    )
