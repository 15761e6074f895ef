"""The ways a step can be laid out: who holds the weights, what is kept, how many rows at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from suffice.planning.devices import Device
from suffice.planning.request import Work
from suffice.planning.trace import Stretch, Trace, flops_of, trace

PASSES = {"allgather": 1, "reduce_scatter": 1, "allreduce": 2}  # over the ring


@dataclass(frozen=True, kw_only=True)
class Time:
    """Seconds of one GPU's work, and its FLOPs.

    Args:
        products: of operations that their products hold up.
        traffic: of operations that reading and writing holds up.
        exchange: of collectives.
        flops: of all products.
    """

    products: float = 0.0
    traffic: float = 0.0
    exchange: float = 0.0
    flops: float = 0.0

    def __add__(self, other: Time) -> Time:
        """Return the sums."""
        return Time(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def __mul__(self, times: float) -> Time:
        """Return the same work so many times."""
        return Time(**{name: value * times for name, value in vars(self).items()})

    @property
    def computing(self) -> float:
        """Seconds without exchange."""
        return self.products + self.traffic

    @property
    def bounds(self) -> tuple[float, float]:
        """Seconds if all exchange happens meanwhile, and if none does."""
        return max(self.computing, self.exchange), self.computing + self.exchange


def time_of(stretch: Stretch, device: Device) -> Time:
    """Return the time of what was recorded, without exchange."""
    products = traffic = flops = 0.0
    for call, times in stretch.calls.items():
        counted = flops_of(call)
        flops += times * counted
        multiplying, moving = counted / device.rate(call.dtype), call.traffic / device.bandwidth
        if multiplying >= moving:
            products += times * multiplying
        else:
            traffic += times * moving
    traffic += sum(stretch.traffic) / device.bandwidth
    return Time(products=products, traffic=traffic, flops=flops)


def exchange_time(
    exchanged: Iterable[tuple[str, int]], ranks: int, device: Device, network: float | None
) -> float:
    """Return the seconds of collectives around a ring.

    Args:
        exchanged: kind and bytes of the whole tensor.
        ranks: around the ring.
        device: of each.
        network: bytes a second to other nodes, for each GPU; None = the device's own.
    """
    rate = device.link if ranks <= device.node else network or device.network
    if ranks == 1 or rate is None:
        return 0.0
    moved = sum(size * passes(kind) for kind, size in exchanged)
    return moved * (ranks - 1) / ranks / min(rate, device.link)


def passes(kind: str) -> int:
    """Return how often a collective sends its tensor around the ring."""
    return next((times for name, times in PASSES.items() if kind.startswith(name)), 1)


GRADIENT = "allreduce"


@dataclass(frozen=True, kw_only=True)
class Way:
    """One layout of a step.

    Args:
        shard: whether the weights are cut between the GPUs (FSDP2) or each has all (DDP).
        checkpointing: whether blocks are computed anew in the backward pass.
        accumulate: micro-batches of a step.
        rows: of a micro-batch on the GPU that has most.
    """

    shard: bool
    checkpointing: bool
    accumulate: int
    rows: int


class Ways:
    """What each layout needs, from few traces: activations and time are lines in the rows.

    Args:
        work: of a recipe.
        device: of every rank.
        gpus: ranks.
        network: bytes a second between nodes, or None for the device's own.
    """

    def __init__(self, work: Work, device: Device, gpus: int, network: float | None) -> None:
        self.work, self.device, self.gpus, self.network = work, device, gpus, network
        self._alone: dict[tuple[int, bool], Trace] = {}
        self._times: dict[tuple[int, bool], Time] = {}

    def bytes_of(self, way: Way, gpus: int | None = None) -> int:
        """Return about how many bytes a rank needs at the fullest moment of a step.

        Args:
            way: the layout.
            gpus: that share the weights; None = the plan's.
        """
        gpus = gpus or self.gpus
        one, two = (self.alone(rows, way.checkpointing) for rows in (1, 2))
        alone = one.peak + (two.peak - one.peak) * (way.rows - 1)
        if gpus == 1:
            return alone
        if not way.shard:
            return alone + one.gradients  # DDP's buckets
        summed = one.gradients if way.accumulate > 1 else 0  # whole, until they meet
        return alone - one.state + -(-one.state // gpus) + self._gathered + summed

    def time_of(self, way: Way) -> Time:
        """Return the time of a whole step."""
        one, two = (self._time(rows, way.checkpointing) for rows in (1, 2))
        micro = one + (two + one * -1) * (way.rows - 1)
        whole = micro * way.accumulate + self._update(way.shard)
        return whole + Time(exchange=self._exchange(way))

    def alone(self, rows: int, checkpointing: bool) -> Trace:
        """Return the trace of a micro-batch on one GPU that holds everything."""
        key = (rows, checkpointing)
        if key not in self._alone:
            self._alone[key] = trace(self.work, rows, checkpointing=checkpointing, accumulate=2)
        return self._alone[key]

    def exact(self, way: Way) -> Trace:
        """Return the trace of a layout itself."""
        return trace(
            self.work,
            way.rows,
            checkpointing=way.checkpointing,
            accumulate=way.accumulate,
            ranks=self.gpus if way.shard else 1,
        )

    @cached_property
    def _apart(self) -> Trace:
        """Trace one row where the weights are cut."""
        again, ranks = self.work.checkpointing, max(self.gpus, 2)
        return trace(self.work, 1, checkpointing=again, ranks=ranks)

    @cached_property
    def _gathered(self) -> int:
        """Bytes that cut weights and gradients take while they are whole."""
        alone = self.alone(1, self.work.checkpointing)
        cut = -(-alone.state // max(self.gpus, 2))
        return max(self._apart.peak - (alone.peak - alone.state + cut), 0)

    def _time(self, rows: int, checkpointing: bool) -> Time:
        key = (rows, checkpointing)
        if key not in self._times:
            self._times[key] = time_of(self.alone(*key).last, self.device)
        return self._times[key]

    def _update(self, shard: bool) -> Time:
        alone = self.alone(1, self.work.checkpointing)
        return time_of(alone.step, self.device) * (1 / self.gpus if shard else 1)

    def _exchange(self, way: Way) -> float:
        if self.gpus == 1:
            return 0.0
        if not way.shard:
            found = [(GRADIENT, self.alone(1, way.checkpointing).gradients)]
        else:
            gathers = [one for one in self._apart.last.exchanged if "gather" in one[0]]
            rest = [one for one in self._apart.last.exchanged if "gather" not in one[0]]
            found = gathers * way.accumulate + rest
        return exchange_time(found, self.gpus, self.device, self.network)
