"""The ways a step can be laid out: who holds the weights, what is kept, how many rows at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from suffice.planning.devices import Device
from suffice.planning.roofline import Time, exchange_time, time_of
from suffice.planning.trace import Trace, trace
from suffice.planning.work import Work

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
