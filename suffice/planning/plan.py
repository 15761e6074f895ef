"""What a recipe's training needs on some GPUs: what fits, how fast it is at best, what it costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from suffice.planning.devices import Device
from suffice.planning.layouts import Time, Way, Ways
from suffice.planning.request import Asked, Work
from suffice.planning.trace import Trace

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


USABLE = 0.9  # of the memory; the rest is the driver's, the exchange's, and gaps between tensors
HOUR, DAY = 3600.0, 86400.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answer.

    Args:
        work: what is trained.
        device: on what.
        gpus: how many.
        memory: bytes of each.
        numbers: parameters of the model.
        choices: layouts, the best of each kind, the recommended one first.
        parts: of the recommended one, traced as it is.
        fewest: GPUs from which on something fits; None = never.
        steps: of the optimiser; None = not known.
        price: of a GPU for an hour; None = not known.
        reached: share of the roofline that is counted on.
    """

    work: Work
    device: Device
    gpus: int
    memory: int
    numbers: int
    choices: tuple[Choice, ...]
    parts: Parts
    fewest: int | None
    steps: int | None
    price: float | None
    reached: float

    @property
    def best(self) -> Choice:
        """The recommended layout."""
        return self.choices[0]

    @property
    def usable(self) -> int:
        """Bytes that tensors may take."""
        return int(self.memory * USABLE)

    @property
    def flops(self) -> float:
        """FLOPs of a step on all GPUs, those of computing anew included."""
        return self.best.time.flops * self.gpus

    def seconds(self, choice: Choice | None = None) -> tuple[float, float]:
        """Return seconds of a step: if all exchange happens meanwhile, and if none does."""
        low, high = (choice or self.best).time.bounds
        return low / self.reached, high / self.reached

    def tokens_per_second(self, choice: Choice | None = None) -> tuple[float, float]:
        """Return tokens a second of all GPUs, the least first."""
        tokens = self.work.rows * self.work.tokens
        low, high = self.seconds(choice)
        return tokens / high, tokens / low

    def days(self) -> tuple[float, float] | None:
        """Return days of the whole training; None = its steps are not known."""
        if self.steps is None:
            return None
        low, high = self.seconds()
        return low * self.steps / DAY, high * self.steps / DAY

    def cost(self) -> tuple[float, float] | None:
        """Return the price of the whole training; None = the price or the steps are not known."""
        days = self.days()
        if days is None or self.price is None:
            return None
        low, high = (each * DAY / HOUR * self.gpus * self.price for each in days)
        return low, high


def plan(work: Work, device: Device, asked: Asked | None = None, **words: Any) -> Plan:
    """Return what a training needs.

    Args:
        work: what is trained.
        device: one GPU.
        asked: the rest; None = what `words` say.
        **words: of `Asked`.

    Raises:
        ConfigError: if something is not legal, or the recipe's training does not have it.
        StateError: in one of several processes.

    Example:
        >>> from suffice.planning import device, plan, work
        >>> found = plan(work("digits_vit"), device("l4"))
        >>> found.best.fits, found.fewest, found.best.way.rows
        (True, 1, 64)
    """
    asked = asked or Asked(**words)
    asked.refuse(work, device)
    memory = asked.memory or device.memory
    ways = Ways(work, device, asked.gpus, asked.network)
    choices, parts = choose(ways, asked, usable := int(memory * USABLE))
    return Plan(
        work=work,
        device=device,
        gpus=asked.gpus,
        memory=memory,
        numbers=ways.alone(1, work.checkpointing).numbers,
        choices=choices,
        parts=parts,
        fewest=fewest(ways, asked, usable),
        steps=work.all_steps(asked.examples),
        price=asked.price,
        reached=asked.reached,
    )
