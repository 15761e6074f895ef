"""One case of the table: every side is proven right, then all are timed in the same rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor, nn

from benchmarks.report import Outcome
from suffice.utils.timing import interleave

Call = Callable[[], object]


class Absent(Exception):
    """A peer that is not installed, or that this machine cannot run; says what to do."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """Who takes part in a case.

    Args:
        name: as the table shows it.
        call: what is timed.
        check: raises AssertionError if the call computes something wrong.
    """

    name: str
    call: Call
    check: Call


@dataclass(frozen=True, kw_only=True)
class Rival:
    """A peer and the speed-up over it that is asked for.

    Args:
        make: returns the side; raises Absent.
        reach: time of the peer over ours; None = told, not judged.
        name: of the peer, for the row of one that is absent.
    """

    make: Callable[[], Side]
    reach: float | None
    name: str


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long to measure.

    Args:
        rounds: samples of each side.
        warmup: calls before the first sample.
        seconds: that a sample lasts at least.
        shrink: divisor of the lengths; above 1 nothing is judged.
    """

    rounds: int = 9
    warmup: int = 2
    seconds: float = 0.05
    shrink: int = 1

    def length(self, length: int) -> int:
        """Return the length to run in place of this one."""
        return length // self.shrink

    def times(self, calls: dict[str, Call]) -> dict[str, tuple[float, ...]]:
        """Time the calls in turn."""
        return interleave(
            calls, rounds=self.rounds, warmup=self.warmup, min_seconds_per_sample=self.seconds
        )

    def judge(self, reached: bool) -> str:
        """Return the last column of a row that has a reach."""
        return "" if self.shrink > 1 else ("reached" if reached else "MISSED")


FULL, QUICK = Effort(), Effort(rounds=2, warmup=1, seconds=1e-6, shrink=4)


def timed(
    compute: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    *,
    backward: bool,
    module: nn.Module | None = None,
) -> Call:
    """Return the call to time: the output alone, or the gradients of inputs and parameters too."""
    if not backward:

        def forward() -> Tensor:
            with torch.inference_mode():
                return compute(*inputs)

        return forward
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    owned = [] if module is None else list(module.parameters())
    with torch.no_grad():
        slope = torch.randn_like(compute(*leaves))

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(compute(*leaves), leaves + owned, slope, allow_unused=True)

    return both


def contest(case: str, ours: Side, rivals: Sequence[Rival], effort: Effort) -> Iterator[Outcome]:
    """Check every side, time those that are right, and give a row for each rival."""
    wrong = _complaint(ours)
    if wrong:
        for rival in rivals:
            yield Outcome(case=case, op=ours.name, peer=rival.name, standing=f"WRONG: {wrong}")
        return
    sides: list[tuple[Rival, Side]] = []
    rows: dict[str, Outcome] = {}
    for rival in rivals:
        row = Outcome(case=case, op=ours.name, peer=rival.name)
        try:
            side = rival.make()
        except Absent as reason:
            rows[rival.name] = row.told(f"absent: {reason}")
            continue
        complaint = _complaint(side)
        rows[rival.name] = row.told(f"PEER WRONG: {complaint}") if complaint else row
        if not complaint:
            sides.append((rival, side))
    times = effort.times({"ours": ours.call, **{r.name: s.call for r, s in sides}}) if sides else {}
    for rival, _ in sides:
        rows[rival.name] = _row(rows[rival.name], rival, times, effort)
    yield from rows.values()


def _row(
    row: Outcome, rival: Rival, times: dict[str, tuple[float, ...]], effort: Effort
) -> Outcome:
    ours, theirs = times["ours"], times[rival.name]
    gain = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    row = row.told(
        "" if rival.reach is None else effort.judge(gain >= rival.reach),
        ours=f"{1e3 * statistics.median(ours):.2f} ms",
        theirs=f"{1e3 * statistics.median(theirs):.2f} ms",
        value=f"{gain:.2f}x",
    )
    return row if rival.reach is None else row.told(row.standing, reach=f"{rival.reach:g}x")


def growth(case: str, sides: dict[int, Side], reach: float, effort: Effort) -> Iterator[Outcome]:
    """Give the exponent of time over length, the median of each round's own least squares."""
    for length, side in sides.items():
        wrong = _complaint(side)
        if wrong:
            told = f"WRONG at T={length}: {wrong}"
            yield Outcome(case=case, op=side.name, peer="itself", standing=told)
            return
    times = effort.times({str(length): side.call for length, side in sides.items()})
    found = statistics.median(
        exponent(list(sides), seconds) for seconds in zip(*times.values(), strict=True)
    )
    first, last = str(min(sides)), str(max(sides))
    yield Outcome(
        case=f"{case}, T={first}..{last}",
        op=sides[int(last)].name,
        peer=f"itself at T={first}",
        ours=f"{1e3 * statistics.median(times[last]):.2f} ms",
        theirs=f"{1e3 * statistics.median(times[first]):.2f} ms",
        value=f"T^{found:.3f}",
        reach=f"T^{reach:g}",
        standing=effort.judge(found <= reach),
    )


def exponent(lengths: Sequence[int], seconds: Sequence[float]) -> float:
    """Return e of the least-squares fit seconds = c * length^e, in logarithms."""
    x, y = [log(length) for length in lengths], [log(second) for second in seconds]
    return statistics.linear_regression(x, y).slope


def _complaint(side: Side) -> str:
    """Return what is wrong with a side, empty if nothing is."""
    try:
        side.check()
    except (AssertionError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""
