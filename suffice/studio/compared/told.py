"""One comparison as plain data: verdict, tables, points of cost and quality, curves."""

from __future__ import annotations

import math
from typing import Any

from suffice.errors import ConfigError
from suffice.measure.costs import COSTS
from suffice.measure.report.palette import looks
from suffice.measure.report.rows import Row, build_rows
from suffice.measure.report.sheets import Sheet, sheets
from suffice.measure.results import Results
from suffice.measure.sentence import margin_points, notes, sentence
from suffice.measure.statistics import summarise
from suffice.measure.verdict import Verdict, judge
from suffice.studio.compared.front import front

CURVES = {
    "validation_accuracy": "validation accuracy",
    "validation_loss": "validation loss",
    "train_loss": "training loss",
}


def told(results: Results, cost: str = "flops", margin: float | None = None) -> dict[str, Any]:
    """Return everything the page shows of a comparison.

    Args:
        results: the comparison.
        cost: what "cheapest" means: "flops", "latency" or "parameters".
        margin: another one than that of the results, a fraction.

    Raises:
        ConfigError: for an unknown cost, one that was not measured, or a margin that is none.
    """
    if margin is not None and not isinstance(margin, (int, float)):
        raise ConfigError(f"margin={margin!r:.40} is no number; give a fraction such as 0.01.")
    verdict = judge(results, margin=margin, cost=cost)
    rows = build_rows(results, verdict)
    return {
        "title": results.title,
        "recipe": results.recipe,
        "scale": results.scale,
        "baseline": results.baseline,
        "margin": verdict.margin,
        "margin_points": margin_points(verdict.margin),
        "cost": cost,
        "costs": [name for name in COSTS if _measured(results, name)],
        "outcome": verdict.outcome,
        "sentence": sentence(verdict, results),
        "notes": notes(verdict, results),
        "tables": [_table(sheet) for sheet in sheets(results, verdict, rows) if sheet.lines],
        "points": _points(rows, verdict),
        "curves": {name: _curves(results, name) for name in CURVES},
        "curve_names": CURVES,
        "looks": {name: place for place, name in enumerate(looks(n for n, _ in results.pairs()))},
        "command": results.command,
        "started": results.started,
    }


def _measured(results: Results, cost: str) -> bool:
    return cost != "latency" or all(results.speed(*key) is not None for key in results.pairs())


def _points(rows: list[Row], verdict: Verdict) -> list[dict[str, Any]]:
    """Return where each (mechanism, heads) stands, and whether it is on the front."""
    costs = [_cost(row, verdict.by) for row in rows]
    best = front([(c, row.test_accuracy.mean) for c, row in zip(costs, rows, strict=True)])
    return [
        {
            "mechanism": row.mechanism,
            "heads": row.num_heads,
            "cost": cost,
            "mean": row.test_accuracy.mean,
            "low": row.test_accuracy.low,
            "high": row.test_accuracy.high,
            "front": on_front,
            "verdict": None if row.comparison is None else row.comparison.sufficiency,
        }
        for row, cost, on_front in zip(rows, costs, best, strict=True)
    ]


def _cost(row: Row, by: str) -> float:
    if by == "latency":
        return row.latency.median  # type: ignore[union-attr] - judged by it, so it is there
    return float(row.flops if by == "flops" else row.parameters_model)


def _curves(results: Results, name: str) -> list[dict[str, Any]]:
    """Return the mean over seeds of each epoch that all seeds reached."""
    found = []
    for mechanism, heads in results.pairs():
        of_seeds = [[e[name] for e in cell.epochs] for cell in results.select(mechanism, heads)]
        epochs = zip(*of_seeds, strict=False)
        means = [summarise(values).mean for values in epochs]
        points = [[n, value] for n, value in enumerate(means, start=1) if math.isfinite(value)]
        found.append({"mechanism": mechanism, "heads": heads, "points": points})
    return found


def _table(sheet: Sheet) -> dict[str, Any]:
    return {
        "title": sheet.title,
        "columns": list(sheet.columns),
        "words": list(sheet.words),
        "caption": sheet.caption,
        "lines": [
            {"cells": list(line.cells), "paper": line.from_paper, "first": line.starts_group}
            for line in sheet.lines
        ],
    }
