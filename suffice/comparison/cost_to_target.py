"""Time, FLOPs and energy to reach the baseline's validation loss, read off the curve."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from suffice.comparison.metrics import LARGEST
from suffice.comparison.results import Results
from suffice.comparison.scores import MIN_SEEDS
from suffice.utils.records import encode
from suffice.utils.statistics import Summary, summarise

FORWARDS = 3  # a training step costs about three forwards
MEASURES = ("epochs", "seconds", "flops", "joules")
Costs = dict[int, float | None]  # by seed; None: does not reach the loss, or is not known


def costs_to_loss(results: Results, mechanism: str, num_heads: int) -> dict[str, Costs]:
    """Return the epochs, CPU seconds, FLOPs and joules to the validation loss of the baseline.

    That is the loss of the baseline's scored weights with the same heads and seed, or its
    median over seeds where the baseline lacks the seed. Epochs may be fractions, FLOPs are those
    of attention layers, and validation is left out of the seconds (`Cell.cost_seconds`).
    """
    targets = {
        cell.seed: cell.epochs[cell.best_epoch - 1]["validation_loss"]
        for cell in results.select(results.baseline, num_heads)
        if cell.epochs
    }
    usual = statistics.median(targets.values()) if targets else math.nan
    samples = 0 if results.data is None else results.data.rows.get("train", 0)
    costs: dict[str, Costs] = {measure: {} for measure in MEASURES}
    for cell in results.select(mechanism, num_heads):
        losses = [epoch["validation_loss"] for epoch in cell.epochs]
        epochs = epochs_to(losses, targets.get(cell.seed, usual))
        costs["epochs"][cell.seed] = epochs
        flops = None if epochs is None else FORWARDS * cell.flops * samples * epochs
        costs["flops"][cell.seed] = flops or None
        for measure, whole in (("seconds", cell.cost_seconds), ("joules", cell.joules)):
            known = epochs is not None and whole is not None
            costs[measure][cell.seed] = whole * epochs / len(losses) if known else None
    return costs


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


def mean_cost(costs: Iterable[float | None]) -> Summary | None:
    """Return the mean over the seeds that reach the loss; None where none does or none is known.

    There is an interval from 3 seeds on, if all reach it: those that do are not a fair sample.
    """
    values = list(costs)
    known = [value for value in values if value]
    if not known:
        return None
    summary = geometric(known)
    return replace(summary, low=None, high=None) if len(known) < len(values) else summary


def ratio_to(
    costs: Mapping[int, float | None], baseline: Mapping[int, float | None]
) -> Summary | None:
    """Return the geometric mean over shared seeds of one cost as a share of the other.

    Returns:
        The ratio with its 95% interval, whose sd is that of the logarithm; None without a seed that
        reaches the loss under both, no interval unless all shared seeds do and there are 3.
    """
    shared = [(costs[seed], baseline[seed]) for seed in costs if seed in baseline]
    return mean_cost(a / b if a and b else None for a, b in shared)


def effort_record(results: Results) -> list[dict[str, Any]]:
    """Return the costs to the baseline's loss, and their ratios to its own, for JSON."""
    records = []
    for mechanism, heads in results.pairs():
        if not all(cell.epochs for cell in results.select(mechanism, heads)):
            continue
        costs = costs_to_loss(results, mechanism, heads)
        base = costs_to_loss(results, results.baseline, heads)
        reached = sum(value is not None for value in costs["epochs"].values())
        record: dict[str, Any] = {"mechanism": mechanism, "num_heads": heads, "reached": reached}
        record["seeds"] = len(costs["epochs"])
        for measure in MEASURES:
            summary = mean_cost(costs[measure].values())
            ratio = ratio_to(costs[measure], base[measure])
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


def energy_note(results: Results) -> str:
    if any(cell.joules is not None for cell in results.cells):
        return "Energy: of the processor packages (RAPL), other programs included."
    return "Energy: not available (no readable RAPL counter)."
