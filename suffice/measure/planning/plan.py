"""Estimates a training on GPUs: memory, roofline time and price of each parallel layout.

The needs of a layout are interpolated from few traces: memory and time are linear in the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from suffice.errors import ConfigError
from suffice.measure.planning.devices import Device
from suffice.measure.planning.trace import Recording, Trace, Workload, flops_of, trace

PASSES = {"allgather": 1, "reduce_scatter": 1, "allreduce": 2}  # around the ring
MAX_GPUS = 4096


@dataclass(frozen=True, kw_only=True)
class ParallelLayout:
    """Weights sharded (FSDP2) or replicated (DDP), blocks recomputed or kept, rows at once."""

    shard: bool
    checkpointing: bool
    accumulate: int = 1
    rows: int = 1

    @property
    def kind(self) -> tuple[bool, bool]:
        """The layout without its micro-batches."""
        return self.shard, self.checkpointing

    def with_micro_batches(self, accumulate: int, workload: Workload, gpus: int) -> ParallelLayout:
        """Return the layout with `accumulate` micro-batches."""
        micro_batch = -(-workload.rows // accumulate)
        return replace(self, accumulate=accumulate, rows=-(-micro_batch // gpus))


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """FLOPs of a GPU's step, and its seconds limited by compute, by memory and by exchange."""

    products: float = 0.0
    traffic: float = 0.0
    exchange: float = 0.0
    flops: float = 0.0

    def __add__(self, other: StepTime) -> StepTime:
        return StepTime(
            **{name: value + getattr(other, name) for name, value in vars(self).items()}
        )

    def __mul__(self, factor: float) -> StepTime:
        return StepTime(**{name: value * factor for name, value in vars(self).items()})

    @property
    def computing(self) -> float:
        """Seconds without exchange."""
        return self.products + self.traffic

    @property
    def bounds(self) -> tuple[float, float]:
        """Seconds if exchange overlaps with computing entirely, and if it does not at all."""
        return max(self.computing, self.exchange), self.computing + self.exchange


@dataclass(frozen=True, kw_only=True)
class LayoutEstimate:
    """Peak bytes of a rank and the time of a step in one layout."""

    layout: ParallelLayout
    memory: int
    fits: bool
    time: StepTime


def time_of(recording: Recording, device: Device) -> StepTime:
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
    return StepTime(products=products, traffic=traffic, flops=flops)


def exchange_time(
    collectives: Iterable[tuple[str, int]], ranks: int, device: Device, network: float | None
) -> float:
    """Return the seconds of collectives, of kind and bytes of the whole tensor, around a ring.

    `network` is in bytes a second per GPU; None uses the device's.
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
        self._times: dict[tuple[int, bool], StepTime] = {}

    def estimate(self, layout: ParallelLayout) -> LayoutEstimate:
        """Return about what a layout needs."""
        memory = self.memory_of(layout)
        fits = memory <= self.usable
        return LayoutEstimate(layout=layout, memory=memory, fits=fits, time=self.time_of(layout))

    def exact(self, estimate: LayoutEstimate) -> tuple[LayoutEstimate, Trace]:
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

    def memory_of(self, layout: ParallelLayout, gpus: int | None = None) -> int:
        """Estimate the peak bytes of a rank; gathered bytes do not depend on the number of GPUs."""
        gpus = gpus or self.gpus
        one, two = (self.single_gpu(rows, layout.checkpointing) for rows in (1, 2))
        alone = one.peak + (two.peak - one.peak) * (layout.rows - 1)
        if gpus == 1:
            return alone
        if not layout.shard:
            return alone + one.gradients  # DDP's buckets
        unreduced = one.gradients if layout.accumulate > 1 else 0
        return alone - one.state + -(-one.state // gpus) + self._gathered + unreduced

    def time_of(self, layout: ParallelLayout) -> StepTime:
        """Return the time of a whole step."""
        one, two = (self._micro_batch_time(rows, layout.checkpointing) for rows in (1, 2))
        micro_batch = one + (two + one * -1) * (layout.rows - 1)
        update = time_of(self._own.step, self.device) * (1 / self.gpus if layout.shard else 1)
        exchange = StepTime(exchange=self._exchange(layout))
        return micro_batch * layout.accumulate + update + exchange

    def single_gpu(self, rows: int, checkpointing: bool) -> Trace:
        """Return the trace of a micro-batch on one GPU that holds everything."""
        key = (rows, checkpointing)
        if key not in self._traces:
            self._traces[key] = trace(
                self.workload, rows, checkpointing=checkpointing, accumulate=2
            )
        return self._traces[key]

    def _micro_batch_time(self, rows: int, checkpointing: bool) -> StepTime:
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
        shard = -(-self._own.state // max(self.gpus, 2))
        return max(self._sharded.peak - (self._own.peak - self._own.state + shard), 0)

    def _exchange(self, layout: ParallelLayout) -> float:
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
    estimator: LayoutEstimator, kinds: list[ParallelLayout], accumulations: list[int]
) -> tuple[tuple[LayoutEstimate, ...], Trace]:
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


def _rank(estimate: LayoutEstimate) -> tuple[bool, float]:
    time = sum(estimate.time.bounds)
    return not estimate.fits, time if estimate.fits else float(estimate.memory)


USABLE = 0.9  # of the memory; the rest is the driver's, the exchange's, and gaps between tensors
HOUR, DAY = 3600.0, 86400.0


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The hardware, and what is decided already.

    Raises:
        ConfigError: if a number is not legal.

    Example:
        >>> PlanOptions(gpus=0, price=-1.0)
        Traceback (most recent call last):
        suffice.errors.ConfigError: gpus=0; give an integer >= 1. price=-1.0; give a number above 0.
    """

    gpus: int = 1  # number of GPUs
    memory: int | None = None  # bytes of each; None uses the device's
    # split the weights between them, or not; None takes the faster one that fits
    shard: bool | None = None
    # recompute blocks in the backward pass, or not; None takes the faster one that fits
    checkpointing: bool | None = None
    accumulate: int | None = None  # micro-batches of a step; None uses the fewest that fit
    examples: int | None = None  # training rows of the data, if the recipe counts epochs
    # bytes a second to other nodes for each GPU; None uses the device's
    network: float | None = None
    price: float | None = None  # price per GPU hour; None if unknown
    reached: float = 1.0  # share of the roofline to count on

    def __post_init__(self) -> None:
        wrong = [
            f"{name}={value}; give an integer >= 1."
            for name in ("gpus", "accumulate", "memory")
            if (value := getattr(self, name)) is not None and value < 1
        ]
        wrong += [
            f"{name}={value}; give a number above 0."
            for name in ("network", "price")
            if (value := getattr(self, name)) is not None and not 0.0 < value < math.inf
        ]
        if not 0.0 < self.reached <= 1.0:
            wrong.append(f"reached={self.reached}; give a share above 0, up to 1.")
        if wrong:
            raise ConfigError(" ".join(wrong))

    def check(self, workload: Workload, device: Device) -> None:
        """Refuse options that do not fit the recipe or the device.

        Raises:
            ConfigError: with the reason.
        """
        if self.gpus * (self.accumulate or 1) > workload.rows:
            micro_batches = f" in {self.accumulate} micro-batches" if self.accumulate else ""
            raise ConfigError(
                f"{workload.name} has batches of {workload.rows} rows, which leaves some of "
                f"{self.gpus} GPUs without one{micro_batches}; give fewer."
            )
        settings = {
            "shard": self.shard,
            "checkpointing": self.checkpointing,
            "accumulate": (self.accumulate or 1) > 1,
        }
        chosen = [name for name, value in settings.items() if value]
        if chosen and not workload.adjustable:
            raise ConfigError(
                f"{', '.join(chosen)}: the training of {workload.name} does not accept it; only "
                "recipes of language models do; leave it out."
            )
        if self.shard and self.gpus == 1:
            raise ConfigError("shard: one GPU cannot share its weights; leave it out.")
        if self.gpus > device.node and self.network is None and device.network is None:
            raise ConfigError(
                f"the speed of exchange between {self.gpus} {device.name} is not known beyond the "
                f"{device.node} of a node; give the network's bytes a second for each GPU."
            )

    def layouts(self, workload: Workload) -> list[ParallelLayout]:
        """Return a layout of each kind that is open."""
        if not workload.adjustable:
            return [ParallelLayout(shard=False, checkpointing=False)]
        shards = [False, True] if self.shard is None else [self.shard]
        recomputes = [False, True] if self.checkpointing is None else [self.checkpointing]
        return [
            ParallelLayout(shard=shard, checkpointing=checkpointing)
            for shard in shards
            for checkpointing in recomputes
            if self.gpus > 1 or not shard
        ]

    def accumulations(self, workload: Workload) -> list[int]:
        """Return how many micro-batches a step can have, the fewest first."""
        if self.accumulate is not None:
            return [self.accumulate]
        most = workload.rows // self.gpus if workload.adjustable else 1
        return sorted({min(2**power, most) for power in range(most.bit_length() + 1)})


@dataclass(frozen=True, kw_only=True)
class MemoryBreakdown:
    """Bytes of one rank, which do not all exist at once; `state` is the KV cache of a full row."""

    parameters: int
    gradients: int
    optimiser: int
    activations: int
    other: int
    peak: int
    state: int

    @classmethod
    def of(cls, workload: Workload, traced: Trace, peak: int) -> MemoryBreakdown:
        """Return the parts of a layout that was traced."""
        names = ("parameters", "gradients", "optimiser", "activations")
        sizes = {name: getattr(traced, name) for name in names}
        number = 2 if workload.dtype == "bfloat16" else 4
        state = sum(
            spec.cost(workload.tokens).state_bytes(workload.tokens, number)
            for spec in workload.specs
            if workload.autoregressive
        )
        return cls(**sizes, other=max(peak - sum(sizes.values()), 0), peak=peak, state=state)


@dataclass(frozen=True, kw_only=True)
class TrainingEstimate:
    """The estimated requirements of a training run."""

    workload: Workload  # training to run
    device: Device  # GPU to run on
    gpus: int  # number of GPUs
    memory: int  # bytes of each
    parameter_count: int  # number of parameters of the model
    layouts: tuple[LayoutEstimate, ...]  # the best of each kind, the recommended one first
    parts: MemoryBreakdown  # memory of the recommended layout by part
    # smallest number of GPUs with which some layout fits; None if none does
    fewest_gpus: int | None
    steps: int | None  # optimiser steps; None if unknown
    price: float | None  # price per GPU hour; None if unknown
    reached: float  # share of the roofline that is counted on

    @property
    def best(self) -> LayoutEstimate:
        """The recommended layout."""
        return self.layouts[0]

    @property
    def usable(self) -> int:
        """Bytes of a GPU that tensors may take."""
        return int(self.memory * USABLE)

    @property
    def flops(self) -> float:
        """FLOPs of a step on all GPUs, recomputation included."""
        return self.best.time.flops * self.gpus

    def seconds(self, estimate: LayoutEstimate | None = None) -> tuple[float, float]:
        """Return seconds of a step: if exchange overlaps entirely, and if it does not at all."""
        low, high = (estimate or self.best).time.bounds
        return low / self.reached, high / self.reached

    def tokens_per_second(self, estimate: LayoutEstimate | None = None) -> tuple[float, float]:
        """Return tokens a second of all GPUs, the least first."""
        tokens = self.workload.rows * self.workload.tokens
        low, high = self.seconds(estimate)
        return tokens / high, tokens / low

    def days(self) -> tuple[float, float] | None:
        """Return days of the whole training; None if its steps are not known."""
        if self.steps is None:
            return None
        low, high = self.seconds()
        return low * self.steps / DAY, high * self.steps / DAY

    def cost(self) -> tuple[float, float] | None:
        """Return the price of the whole training; None if the price or the steps are not known."""
        days = self.days()
        if days is None or self.price is None:
            return None
        low, high = (each * DAY / HOUR * self.gpus * self.price for each in days)
        return low, high


def plan(
    workload: Workload, device: Device, options: PlanOptions | None = None, **settings: Any
) -> TrainingEstimate:
    """Return what a training needs.

    Args:
        workload: training to run.
        device: one GPU.
        options: the rest; None = what `settings` say.
        **settings: settings of `PlanOptions`.

    Raises:
        ConfigError: if something is not legal, or the recipe's training does not have it.
        StateError: in one of several processes.

    Example:
        >>> from suffice.measure.planning import device, plan, workload
        >>> estimate = plan(workload("digits_vit"), device("l4"))
        >>> estimate.best.fits, estimate.fewest_gpus, estimate.best.layout.rows
        (True, 1, 64)
    """
    options = options or PlanOptions(**settings)
    options.check(workload, device)
    memory = options.memory or device.memory
    usable = int(memory * USABLE)
    estimator = LayoutEstimator(workload, device, options.gpus, options.network, usable)
    layouts, traced = best_layouts(
        estimator, options.layouts(workload), options.accumulations(workload)
    )
    return TrainingEstimate(
        workload=workload,
        device=device,
        gpus=options.gpus,
        memory=memory,
        parameter_count=estimator.single_gpu(1, workload.checkpointing).parameter_count,
        layouts=layouts,
        parts=MemoryBreakdown.of(workload, traced, layouts[0].memory),
        fewest_gpus=_fewest_gpus(estimator, options),
        steps=workload.all_steps(options.examples),
        price=options.price,
        reached=options.reached,
    )


def _fewest_gpus(estimator: LayoutEstimator, options: PlanOptions) -> int | None:
    """Return the least power of two of GPUs with which some layout fits; None if none does."""
    workload = estimator.workload
    most = min(workload.rows // (options.accumulate or 1), MAX_GPUS)
    for gpus in (2**power for power in range(most.bit_length())):
        with_gpus = replace(options, gpus=gpus)
        accumulations = with_gpus.accumulations(workload)
        for kind in with_gpus.layouts(workload):
            for accumulate in (accumulations[0], accumulations[-1]):
                layout = kind.with_micro_batches(accumulate, workload, gpus)
                if estimator.memory_of(layout, gpus) <= estimator.usable:
                    return gpus
    return None
