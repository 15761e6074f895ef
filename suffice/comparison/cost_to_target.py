"""Time, FLOPs and energy to reach the baseline's validation loss, read off the curve."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from suffice.comparison.metrics import LARGEST
from suffice.comparison.results import Cell, Results
from suffice.comparison.scores import MIN_SEEDS
from suffice.utils.records import encode
from suffice.utils.statistics import Summary, summarise

FORWARDS = 3  # a training step costs about three forwards


@dataclass(frozen=True, kw_only=True)
class Effort:
    """The cost to reach a loss, seed by seed; None where a seed does not reach it."""

    epochs: tuple[float | None, ...]  # fractions of epochs count
    # CPU seconds of training, see `Cell.cost_seconds`; validation left out
    seconds: tuple[float | None, ...]
    flops: tuple[float | None, ...]  # FLOPs of the attention layers
    # energy of the processor; None where the machine does not report it
    joules: tuple[float | None, ...]


def effort_of(results: Results, mechanism: str, num_heads: int) -> Effort:
    """Return what a mechanism costs to reach the validation loss of the baseline.

    That is the loss of the baseline's scored weights with the same heads and seed, or its
    median over seeds where the baseline lacks the seed.
    """
    cells = results.select(mechanism, num_heads)
    targets = {
        cell.seed: cell.epochs[cell.best_epoch - 1]["validation_loss"]
        for cell in results.select(results.baseline, num_heads)
        if cell.epochs
    }
    usual = statistics.median(targets.values()) if targets else math.nan
    epochs = [
        epochs_to(
            [epoch["validation_loss"] for epoch in cell.epochs], targets.get(cell.seed, usual)
        )
        for cell in cells
    ]
    samples = 0 if results.data is None else results.data.rows.get("train", 0)
    return Effort(
        epochs=tuple(epochs),
        seconds=tuple(_of_epochs(c, e, c.cost_seconds) for c, e in zip(cells, epochs, strict=True)),
        flops=tuple(
            None if e is None or not samples else FORWARDS * c.flops * samples * e
            for c, e in zip(cells, epochs, strict=True)
        ),
        joules=tuple(_of_epochs(c, e, c.joules) for c, e in zip(cells, epochs, strict=True)),
    )


MEASURES = ("epochs", "seconds", "flops", "joules")


def geometric(values: Sequence[float]) -> Summary:
    """Return the geometric mean of times or other costs, with its 95% interval from 3 on.

    The interval is that of the logarithms, so that no end of it is negative; so is the sd.

    Example:
        >>> times = geometric([1.0, 1.0, 64.0])
        >>> round(times.mean, 9), 0.0 < times.low < times.high
        (4.0, True)
    """
    logarithms = summarise([math.log(value) for value in values])
    low, high = logarithms.low, logarithms.high
    if low is not None and high is not None and len(values) >= MIN_SEEDS:
        low, high = math.exp(low), math.exp(min(high, LARGEST))
    else:
        low = high = None
    return replace(logarithms, mean=math.exp(logarithms.mean), low=low, high=high)


def mean_cost(values: Sequence[float | None]) -> Summary | None:
    """Return the mean over the seeds that reach the loss; None where none does or none is known.

    There is an interval from 3 seeds on, if all reach it: those that do are not a fair sample.
    """
    known = [value for value in values if value]
    if not known:
        return None
    summary = geometric(known)
    return replace(summary, low=None, high=None) if len(known) < len(values) else summary


def ratio_to(
    costs: Mapping[int, float | None], baseline: Mapping[int, float | None]
) -> Summary | None:
    """Return the geometric mean over shared seeds of what one costs as a share of the other.

    Returns:
        The ratio with its 95% interval, whose sd is that of the logarithm; None without a seed that
        reaches the loss under both, no interval unless all shared seeds do and there are 3.

    Example:
        >>> ratio_to({0: 1.0, 1: 1.0}, {0: 2.0, 1: 2.0}).mean
        0.5
    """
    shared = [seed for seed in costs if seed in baseline]
    pairs = [(costs[seed], baseline[seed]) for seed in shared]
    ratios = [a / b for a, b in pairs if a and b]
    if not ratios:
        return None
    summary = geometric(ratios)
    return replace(summary, low=None, high=None) if len(ratios) < len(shared) else summary


def effort_ratio(results: Results, mechanism: str, num_heads: int, measure: str) -> Summary | None:
    """Return what a mechanism costs to the baseline's loss as a share of what the baseline does."""

    def by_seed(name: str) -> dict[int, float | None]:
        values = getattr(effort_of(results, name, num_heads), measure)
        seeds = [cell.seed for cell in results.select(name, num_heads)]
        return dict(zip(seeds, values, strict=True))

    return ratio_to(by_seed(mechanism), by_seed(results.baseline))


def effort_record(results: Results) -> list[dict[str, Any]]:
    records = []
    for mechanism, heads in results.pairs():
        if not all(cell.epochs for cell in results.select(mechanism, heads)):
            continue
        effort = effort_of(results, mechanism, heads)
        reached = sum(value is not None for value in effort.epochs)
        record: dict[str, Any] = {"mechanism": mechanism, "num_heads": heads, "reached": reached}
        record["seeds"] = len(effort.epochs)
        for measure in MEASURES:
            summary = mean_cost(getattr(effort, measure))
            ratio = effort_ratio(results, mechanism, heads, measure)
            record[measure] = None if summary is None else asdict(summary)
            record[f"{measure}_ratio"] = None if ratio is None else asdict(ratio)
        records.append(record)
    return encode(records)


def epochs_to(losses: Sequence[float], target: float) -> float | None:
    """Return after how many epochs a loss first is at the target; None if it never is.

    Between two epochs the loss is a straight line. Within the first nothing is known of it, so
    that counts in full.

    Example:
        >>> epochs_to([2.0, 1.0, 0.5], 0.75), epochs_to([2.0, 1.0], 0.5), epochs_to([0.5], 1.0)
        (2.5, None, 1.0)
    """
    for number, loss in enumerate(losses):
        if loss <= target:
            before = losses[number - 1] if number else loss
            drop = before - loss
            return number + ((before - target) / drop if drop > 0.0 else 1.0)
    return None


def _of_epochs(cell: Cell, epochs: float | None, whole: float | None) -> float | None:
    if epochs is None or whole is None:
        return None
    return whole * epochs / len(cell.epochs)


def energy_note(results: Results) -> str:
    """Return where the energy comes from, or that it is not known."""
    if any(cell.joules is not None for cell in results.cells):
        return "Energy: of the processor packages (RAPL), other programs included."
    return "Energy: not available (no readable RAPL counter)."
