"""Layouts of a training step: who holds the weights, what is recomputed, how many rows at once.

A layout's needs are estimated from few traces: memory and time are linear in the rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from suffice.planning.devices import Device
from suffice.planning.trace import Recording, Trace, flops_of, trace
from suffice.planning.workload import Workload

PASSES = {"allgather": 1, "reduce_scatter": 1, "allreduce": 2}  # around the ring
MOST_GPUS = 4096


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Weights sharded (FSDP2) or replicated (DDP), blocks recomputed or kept, rows at once."""

    shard: bool
    checkpointing: bool
    accumulate: int = 1
    rows: int = 1

    @property
    def kind(self) -> tuple[bool, bool]:
        """The layout without its micro-batches."""
        return self.shard, self.checkpointing

    def with_micro_batches(self, accumulate: int, workload: Workload, gpus: int) -> Layout:
        """Return the layout with so many micro-batches."""
        micro_batch = -(-workload.rows // accumulate)
        return replace(self, accumulate=accumulate, rows=-(-micro_batch // gpus))


@dataclass(frozen=True, kw_only=True)
class Time:
    """FLOPs of a GPU's step, and its seconds limited by compute, by memory and by exchange."""

    products: float = 0.0
    traffic: float = 0.0
    exchange: float = 0.0
    flops: float = 0.0

    def __add__(self, other: Time) -> Time:
        return Time(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def __mul__(self, factor: float) -> Time:
        return Time(**{name: value * factor for name, value in vars(self).items()})

    @property
    def computing(self) -> float:
        """Seconds without exchange."""
        return self.products + self.traffic

    @property
    def bounds(self) -> tuple[float, float]:
        """Seconds if exchange overlaps with computing entirely, and if it does not at all."""
        return max(self.computing, self.exchange), self.computing + self.exchange


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Peak bytes of a rank and the time of a step in one layout."""

    layout: Layout
    memory: int
    fits: bool
    time: Time


def time_of(recording: Recording, device: Device) -> Time:
    """Return the roofline time of recorded operations, without exchange."""
    products = traffic = flops = 0.0
    for call, count in recording.calls.items():
        call_flops = flops_of(call)
        flops += count * call_flops
        computing = call_flops / device.rate(call.dtype)
        moving = call.traffic / device.bandwidth
        if computing >= moving:
            products += count * computing
        else:
            traffic += count * moving
    traffic += sum(recording.traffic) / device.bandwidth
    return Time(products=products, traffic=traffic, flops=flops)


def exchange_time(
    collectives: Iterable[tuple[str, int]], ranks: int, device: Device, network: float | None
) -> float:
    """Return the seconds of collectives, of kind and bytes of the whole tensor, around a ring.

    `network` is in bytes a second per GPU; None = the device's.
    """
    rate = device.link if ranks <= device.node else network or device.network
    if ranks == 1 or rate is None:
        return 0.0
    moved = sum(size * _passes(kind) for kind, size in collectives)
    return moved * (ranks - 1) / ranks / min(rate, device.link)


def _passes(kind: str) -> int:
    return next((passes for name, passes in PASSES.items() if kind.startswith(name)), 1)


class LayoutEstimator:
    """Estimates the memory (bytes of a rank) and time of each layout from few traces."""

    def __init__(
        self, workload: Workload, device: Device, gpus: int, network: float | None, usable: int
    ) -> None:
        self.workload, self.device, self.gpus = workload, device, gpus
        self.network, self.usable = network, usable
        self._traces: dict[tuple[int, bool], Trace] = {}
        self._times: dict[tuple[int, bool], Time] = {}

    def estimate(self, layout: Layout) -> Estimate:
        """Return about what a layout needs."""
        memory = self.memory_of(layout)
        fits = memory <= self.usable
        return Estimate(layout=layout, memory=memory, fits=fits, time=self.time_of(layout))

    def exact(self, estimate: Estimate) -> tuple[Estimate, Trace]:
        """Return an estimate with its memory from a trace of the layout itself, and the trace."""
        layout = estimate.layout
        traced = trace(
            self.workload,
            layout.rows,
            checkpointing=layout.checkpointing,
            accumulate=layout.accumulate,
            ranks=self.gpus if layout.shard else 1,
        )
        copies = self.gpus > 1 and not layout.shard
        memory = traced.peak + (traced.gradients if copies else 0)  # DDP's buckets
        return replace(estimate, memory=memory, fits=memory <= self.usable), traced

    def memory_of(self, layout: Layout, gpus: int | None = None) -> int:
        """Estimate the peak bytes of a rank; other numbers of GPUs gather as many bytes."""
        gpus = gpus or self.gpus
        one, two = (self.single_gpu(rows, layout.checkpointing) for rows in (1, 2))
        alone = one.peak + (two.peak - one.peak) * (layout.rows - 1)
        if gpus == 1:
            return alone
        if not layout.shard:
            return alone + one.gradients  # DDP's buckets
        unreduced = one.gradients if layout.accumulate > 1 else 0
        return alone - one.state + -(-one.state // gpus) + self._gathered + unreduced

    def time_of(self, layout: Layout) -> Time:
        """Return the time of a whole step."""
        one, two = (self._micro_batch_time(rows, layout.checkpointing) for rows in (1, 2))
        micro_batch = one + (two + one * -1) * (layout.rows - 1)
        update = time_of(self._own.step, self.device) * (1 / self.gpus if layout.shard else 1)
        exchange = Time(exchange=self._exchange(layout))
        return micro_batch * layout.accumulate + update + exchange

    def single_gpu(self, rows: int, checkpointing: bool) -> Trace:
        """Return the trace of a micro-batch on one GPU that holds everything."""
        key = (rows, checkpointing)
        if key not in self._traces:
            self._traces[key] = trace(
                self.workload, rows, checkpointing=checkpointing, accumulate=2
            )
        return self._traces[key]

    def _micro_batch_time(self, rows: int, checkpointing: bool) -> Time:
        key = (rows, checkpointing)
        if key not in self._times:
            self._times[key] = time_of(self.single_gpu(*key).last, self.device)
        return self._times[key]

    @property
    def _own(self) -> Trace:
        return self.single_gpu(1, self.workload.checkpointing)

    @cached_property
    def _sharded(self) -> Trace:
        checkpointing, ranks = self.workload.checkpointing, max(self.gpus, 2)
        return trace(self.workload, 1, checkpointing=checkpointing, ranks=ranks)

    @cached_property
    def _gathered(self) -> int:
        """Bytes of weights and gradients while they are gathered."""
        shard = -(-self._own.state // max(self.gpus, 2))
        return max(self._sharded.peak - (self._own.peak - self._own.state + shard), 0)

    def _exchange(self, layout: Layout) -> float:
        if self.gpus == 1:
            return 0.0
        if not layout.shard:
            gradients = self.single_gpu(1, layout.checkpointing).gradients
            collectives = [("allreduce", gradients)]
        else:
            recorded = self._sharded.last.exchanged
            gathers = [each for each in recorded if "gather" in each[0]]
            rest = [each for each in recorded if "gather" not in each[0]]
            collectives = gathers * layout.accumulate + rest
        return exchange_time(collectives, self.gpus, self.device, self.network)


def best_layouts(
    estimator: LayoutEstimator, kinds: list[Layout], accumulations: list[int]
) -> tuple[tuple[Estimate, ...], Trace]:
    """Return the best layout of each kind, the recommended one first and exact, and its trace.

    `accumulations` (micro-batches of a step) begin with the fewest.
    """
    gpus, workload = estimator.gpus, estimator.workload
    best_of_kind = []
    for kind in kinds:
        estimates = [
            estimator.estimate(kind.with_micro_batches(accumulate, workload, gpus))
            for accumulate in accumulations
        ]
        # the largest micro-batches that fit, else the smallest
        smallest = min(estimates, key=lambda estimate: estimate.memory)
        best_of_kind.append(next((each for each in estimates if each.fits), smallest))
    best_of_kind.sort(key=_rank)
    best = best_of_kind[0]
    while True:
        exact, traced = estimator.exact(best)
        tighter = [each for each in accumulations if each > best.layout.accumulate]
        if exact.fits or not best.fits or not tighter:
            break
        layout = best.layout.with_micro_batches(tighter[0], workload, gpus)
        best = estimator.estimate(layout)
    others = [each for each in best_of_kind if each.layout.kind != best.layout.kind]
    return (exact, *others), traced


def _rank(estimate: Estimate) -> tuple[bool, float]:
    """Order layouts that fit by time, then the others by memory."""
    time = sum(estimate.time.bounds)
    return not estimate.fits, time if estimate.fits else float(estimate.memory)
