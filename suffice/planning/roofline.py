"""The least time a step can take: products at the highest rate, traffic at the full bandwidth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from suffice.planning.devices import Device
from suffice.planning.recorder import Stretch, flops_of

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
