"""One comparison as plain data: verdict, tables, points of cost and quality, curves."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from suffice.errors import ConfigError, DataError
from suffice.measure.plan import CELLS, FILE, SavedPlan, read_plan
from suffice.measure.report.canvas import looks
from suffice.measure.report.sheet import Sheet
from suffice.measure.report.tables import Row, build_rows, tables
from suffice.measure.results import Cell, Results, cell_path, read_cell, read_results
from suffice.measure.sentence import margin_points, notes, sentence
from suffice.measure.statistics import summarise
from suffice.measure.verdict import COSTS, Verdict, judge
from suffice.papers.printed import paper_rows
from suffice.papers.results import path_of, published, read_ran, trained_seconds
from suffice.papers.tables import TABLES
from suffice.studio.folders import below, rooted


def front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Say of each (cost, quality) whether no other is at least as good in both and better in one.

    Example:
        >>> front([(1.0, 0.5), (2.0, 0.9), (3.0, 0.8), (2.0, 0.9)])
        [True, True, False, True]
    """
    return [
        not any(c <= cost and q >= quality and (c, q) != (cost, quality) for c, q in points)
        for cost, quality in points
    ]


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
    paper = paper_rows(results.task, results.recipe)
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
        "tables": [_table(sheet) for sheet in tables(results, verdict, paper)],
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


RESULTS = "results.json"
PACKAGE = -1  # in place of the number of a folder
DEEPEST, MOST = 4, 200  # folders inside each other; comparisons in one list


@dataclass(frozen=True, kw_only=True)
class Found:
    """One comparison that can be opened.

    Args:
        root: number of the folder that was chosen, -1 = the package.
        name: below it, or of the package's table.
        told: what a list says.
        finished: whether all of it was run.
    """

    root: int
    name: str
    told: str
    finished: bool

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def found(roots: tuple[Path, ...]) -> list[Found]:
    """List what can be opened: the folders' first, then the package's."""
    own = [one for number, root in enumerate(roots) for one in _beneath(number, root)]
    stores = dict.fromkeys(table.store for table in TABLES.values() if table.trained)
    there = [store for store in stores if path_of(store).exists()]
    return own[:MOST] + [
        Found(root=PACKAGE, name=store, told=f"published: {store}", finished=True)
        for store in there
    ]


def read(roots: tuple[Path, ...], root: object, name: object) -> Results:
    """Read one comparison.

    Args:
        roots: the folders that were chosen.
        root: number of one of them, -1 = the package.
        name: below it.

    Raises:
        DataError: for what is not in the list, or cannot be read.
    """
    if root == PACKAGE:
        return _packaged(name)
    folder = below(rooted(roots, root), name)
    if (folder / RESULTS).is_file():
        return read_results(folder / RESULTS)
    return _begun(folder)


def _packaged(name: object) -> Results:
    for table in TABLES.values():
        if table.store == name and (content := published(table)) is not None:
            return content.results
    raise DataError(f"nothing was published as {name!r:.80}; choose from the list.")


def _begun(folder: Path) -> Results:
    """Return what is finished of a comparison that has not ended, or of a reproduction."""
    kept, ran = read_plan(folder), read_ran(folder)
    cells = _cells(folder, kept)
    if not cells:
        raise DataError(f"no model is finished in {folder.name} yet; look again later.")
    return Results(
        task=str(kept.recipe.get("task")),
        recipe=str(kept.recipe.get("name")),
        title=str(kept.recipe.get("title")),
        scale=str(kept.recipe.get("scale", "paper")),
        margin=kept.margin,
        baseline=kept.baseline,
        cells=cells,
        speeds=(),
        machine={} if ran is None else ran.machine,
        versions={} if ran is None else ran.versions,
        commit=None if ran is None else ran.commit,
        command="not finished yet" if ran is None else ran.command,
        started="" if ran is None else ran.started,
        seconds=sum(map(trained_seconds, cells)),
    )


def _cells(folder: Path, kept: SavedPlan) -> tuple[Cell, ...]:
    """Read the finished cells, in the order of the plan's mechanisms."""
    read_ones = []
    for path in sorted((folder / CELLS).glob("*.json")):
        name, heads, seed = path.stem.rsplit("-", 2)
        key = (unquote(name), int(heads[1:]), int(seed[1:]))
        if cell_path(folder, *key).exists() and (cell := read_cell(folder, *key)) is not None:
            read_ones.append(cell)
    order = {name: place for place, name in enumerate(kept.mechanisms)}
    last = len(order)
    return tuple(
        sorted(read_ones, key=lambda c: (c.num_heads, order.get(c.mechanism, last), c.seed))
    )


def _beneath(number: int, root: Path) -> Iterator[Found]:
    """Look for comparisons in a folder and below it; links are not followed."""
    inside = root.resolve()
    for here, folders, files in os.walk(inside):
        path = Path(here)
        name = path.relative_to(inside)
        begun = FILE in files and CELLS in folders
        if begun or (RESULTS in files and _compares(path / RESULTS)):
            finished = RESULTS in files
            told = f"{inside.name if name == Path() else name.as_posix()}"
            told += "" if finished else " (not finished)"
            yield Found(root=number, name=name.as_posix(), told=told, finished=finished)
            folders.clear()
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f != CELLS)
        if len(name.parts) >= DEEPEST:
            folders.clear()


def _compares(path: Path) -> bool:
    """Return whether results may be those of a comparison; other commands leave files so named."""
    try:
        told = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return True  # opening it says what is wrong
    return not isinstance(told, dict) or "cells" in told


__all__ = ["Found", "found", "front", "read", "told"]
