"""Estimate a recipe's training on GPUs: memory, best-case speed and price."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from suffice.errors import ConfigError
from suffice.planning.devices import Device
from suffice.planning.layouts import MOST_GPUS, Estimate, Layout, LayoutEstimator, best_layouts
from suffice.planning.trace import Trace
from suffice.planning.workload import Workload

USABLE = 0.9  # of the memory; the rest is the driver's, the exchange's, and gaps between tensors
HOUR, DAY = 3600.0, 86400.0


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The hardware, and what is decided already.

    Args:
        gpus: how many.
        memory: bytes of each; None = the device's.
        shard: split the weights between them, or not; None = whichever is faster and fits.
        checkpointing: recompute blocks in the backward pass, or not; None = likewise.
        accumulate: micro-batches of a step; None = the fewest that fit.
        examples: training rows of the data, if the recipe counts epochs.
        network: bytes a second to other nodes for each GPU; None = the device's.
        price: of a GPU for an hour; None = not known.
        reached: share of the roofline to count on.

    Raises:
        ConfigError: if a number is not legal.

    Example:
        >>> PlanOptions(gpus=0, price=-1.0)
        Traceback (most recent call last):
        suffice.errors.ConfigError: gpus=0; give an integer >= 1. price=-1.0; give a number above 0.
    """

    gpus: int = 1
    memory: int | None = None
    shard: bool | None = None
    checkpointing: bool | None = None
    accumulate: int | None = None
    examples: int | None = None
    network: float | None = None
    price: float | None = None
    reached: float = 1.0

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
        given = [name for name, value in settings.items() if value]
        if given and not workload.adjustable:
            raise ConfigError(
                f"{', '.join(given)}: the training of {workload.name} does not accept it, only "
                "recipes of language models do; leave it out."
            )
        if self.shard and self.gpus == 1:
            raise ConfigError("shard: one GPU cannot share its weights; leave it out.")
        if self.gpus > device.node and self.network is None and device.network is None:
            raise ConfigError(
                f"the speed of exchange between {self.gpus} {device.name} is not known beyond the "
                f"{device.node} of a node; give the network's bytes a second for each GPU."
            )

    def layouts(self, workload: Workload) -> list[Layout]:
        """Return a layout of each kind that is open."""
        if not workload.adjustable:
            return [Layout(shard=False, checkpointing=False)]
        shards = [False, True] if self.shard is None else [self.shard]
        recomputes = [False, True] if self.checkpointing is None else [self.checkpointing]
        return [
            Layout(shard=shard, checkpointing=checkpointing)
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
class Parts:
    """Bytes of one rank, which do not all exist at once; `state` is the KV cache of a full row."""

    parameters: int
    gradients: int
    optimiser: int
    activations: int
    other: int
    peak: int
    state: int

    @classmethod
    def of(cls, workload: Workload, traced: Trace, peak: int) -> Parts:
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
class Plan:
    """The estimated requirements of a training run.

    Args:
        workload: what is trained.
        device: on what.
        gpus: how many.
        memory: bytes of each.
        parameter_count: of the model.
        layouts: the best of each kind, the recommended one first.
        parts: of the recommended one.
        fewest_gpus: with which some layout fits; None = never.
        steps: of the optimiser; None = not known.
        price: of a GPU for an hour; None = not known.
        reached: share of the roofline that is counted on.
    """

    workload: Workload
    device: Device
    gpus: int
    memory: int
    parameter_count: int
    layouts: tuple[Estimate, ...]
    parts: Parts
    fewest_gpus: int | None
    steps: int | None
    price: float | None
    reached: float

    @property
    def best(self) -> Estimate:
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

    def seconds(self, estimate: Estimate | None = None) -> tuple[float, float]:
        """Return seconds of a step: if exchange overlaps entirely, and if it does not at all."""
        low, high = (estimate or self.best).time.bounds
        return low / self.reached, high / self.reached

    def tokens_per_second(self, estimate: Estimate | None = None) -> tuple[float, float]:
        """Return tokens a second of all GPUs, the least first."""
        tokens = self.workload.rows * self.workload.tokens
        low, high = self.seconds(estimate)
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


def plan(
    workload: Workload, device: Device, options: PlanOptions | None = None, **settings: Any
) -> Plan:
    """Return what a training needs.

    Args:
        workload: what is trained.
        device: one GPU.
        options: the rest; None = what `settings` say.
        **settings: of `PlanOptions`.

    Raises:
        ConfigError: if something is not legal, or the recipe's training does not have it.
        StateError: in one of several processes.

    Example:
        >>> from suffice.planning import device, plan, workload
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
    return Plan(
        workload=workload,
        device=device,
        gpus=options.gpus,
        memory=memory,
        parameter_count=estimator.single_gpu(1, workload.checkpointing).parameter_count,
        layouts=layouts,
        parts=Parts.of(workload, traced, layouts[0].memory),
        fewest_gpus=_fewest_gpus(estimator, options),
        steps=workload.all_steps(options.examples),
        price=options.price,
        reached=options.reached,
    )


def _fewest_gpus(estimator: LayoutEstimator, options: PlanOptions) -> int | None:
    """Return the least power of two of GPUs with which some layout fits; None = never."""
    workload = estimator.workload
    most = min(workload.rows // (options.accumulate or 1), MOST_GPUS)
    for gpus in (2**power for power in range(most.bit_length())):
        with_gpus = replace(options, gpus=gpus)
        accumulations = with_gpus.accumulations(workload)
        for kind in with_gpus.layouts(workload):
            for accumulate in (accumulations[0], accumulations[-1]):
                layout = kind.with_micro_batches(accumulate, workload, gpus)
                if estimator.memory_of(layout, gpus) <= estimator.usable:
                    return gpus
    return None
