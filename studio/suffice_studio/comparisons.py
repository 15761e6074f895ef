"""Comparisons, finished or not: list, read, and describe them as plain data for the page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import chain, starmap
from pathlib import Path
from typing import Any

from suffice.comparison.plan import CELLS, FILE, SavedPlan, read_plan, read_provenance
from suffice.comparison.report.plots import points
from suffice.comparison.report.sheet import Sheet
from suffice.comparison.report.tables import quality_floors, tables
from suffice.comparison.results import (
    Cell,
    Results,
    find_cells,
    read_cell,
    read_facts,
    read_results,
)
from suffice.comparison.sentence import notes, sentence
from suffice.comparison.sufficiency import SUFFICES
from suffice.comparison.verdict import COSTS, Comparison, Verdict, judge
from suffice.errors import ConfigError, DataError, install_line
from suffice.utils.canvas import COLOURS, line_styles
from suffice.utils.files import read_json
from suffice.utils.statistics import summarise
from suffice_studio.folders import below, numbered, walk

RESULTS = "results.json"
PACKAGE = -1  # instead of the number of a folder: the results in suffice-papers
MAX_COMPARISONS = 200  # in one list
MOST_DRAWN = 6  # mechanisms in a figure, until all are asked for
GROUPS = {
    "Reviews": ("imdb", "amazon", "womens_clothing"),
    "Images": ("mnist", "cifar10_jpeg", "tiny_imagenet_100"),
    "Translation": ("translation_es",),
    "Language": ("text",),
    "Recall": ("mqar", "induction", "copy", "two_hop"),
}
"""Tasks of published comparisons, in the order of the list."""


@dataclass(frozen=True, kw_only=True)
class ListedComparison:
    """A comparison that can be opened."""

    root: int  # number of the folder, -1 = suffice-papers
    name: str  # below the folder, or of the published results
    label: str
    finished: bool
    group: str = "Yours"


def list_comparisons(roots: tuple[Path, ...]) -> list[ListedComparison]:
    """List the comparisons in the folders, then those in suffice-papers where it is installed."""
    in_folders = list(chain.from_iterable(starmap(_below_root, enumerate(roots))))
    return [*in_folders[:MAX_COMPARISONS], *(_published() if _has_papers() else ())]


def _has_papers() -> bool:
    return find_spec("suffice_papers") is not None


@cache
def _published() -> tuple[ListedComparison, ...]:
    from suffice_papers.published import path_of, published_names

    group_of = {task: group for group, tasks in GROUPS.items() for task in tasks}
    places, found = list(group_of), []
    for name in published_names():
        content = read_json(path_of(name))["results"]
        title, _, small = content["title"].partition("; ")
        label = title.partition(" (arXiv")[0] + (small and " (small)")
        place = (places.index(content["task"]), not name.startswith("v"), name)
        group = group_of[content["task"]]
        one = ListedComparison(root=PACKAGE, name=name, label=label, finished=True, group=group)
        found.append((place, one))
    return tuple(one for _, one in sorted(found, key=lambda pair: pair[0]))


def _below_root(number: int, root: Path) -> Iterator[ListedComparison]:
    inside = root.resolve()
    for name, folders, files in walk(inside):
        finished = RESULTS in files
        started = FILE in files and CELLS in folders
        if started or (finished and _may_be_comparison(inside / name / RESULTS)):
            label = inside.name if name == Path() else name.as_posix()
            yield ListedComparison(
                root=number,
                name=name.as_posix(),
                label=label if finished else f"{label} (not finished)",
                finished=finished,
            )
            folders.clear()
        elif CELLS in folders:
            folders.remove(CELLS)


def _may_be_comparison(path: Path) -> bool:
    """Return whether a file may hold a comparison; other commands use its name as well."""
    try:
        data = read_json(path)
    except DataError:
        return True  # opening it raises the error
    return not isinstance(data, dict) or "cells" in data


def read(roots: tuple[Path, ...], root: object, name: object) -> Results:
    """Read the comparison with a name below a numbered folder; folder -1 is suffice-papers.

    Raises:
        ConfigError: for one of suffice-papers where that is not installed.
        DataError: for a comparison that is not in the list, or cannot be read.
    """
    if root == PACKAGE:
        return _read_packaged(name)
    folder = below(numbered(roots, root), name)
    if (folder / RESULTS).is_file():
        return read_results(folder / RESULTS)
    return _read_unfinished(folder)


def _read_packaged(name: object) -> Results:
    if not _has_papers():
        command = install_line("suffice-papers", folder="papers")
        raise ConfigError(f"{name!r:.80} is in suffice-papers, which is not installed: {command}.")
    from suffice_papers.published import published_names, read_published

    if name in published_names():
        return read_published(str(name)).results
    raise DataError(f"nothing was published as {name!r:.80}; choose from the list.")


def _read_unfinished(folder: Path) -> Results:
    plan, provenance = read_plan(folder), read_provenance(folder)
    cells = _finished_cells(folder, plan)
    if not cells:
        raise DataError(f"no model is finished in {folder.name} yet; try again later.")
    facts = read_facts(folder)
    if provenance is None:
        facts["command"] = "\n".join(plan.commands) or "not finished yet"
    else:
        names = ("machine", "versions", "commit", "command", "started")
        facts |= {name: getattr(provenance, name) for name in names}
    return Results.of(plan, cells, seconds=sum(cell.cost_seconds for cell in cells), **facts)


def _finished_cells(folder: Path, plan: SavedPlan) -> tuple[Cell, ...]:
    cells = []
    for key in find_cells(folder):
        if (cell := read_cell(folder, *key)) is not None:
            cells.append(cell)
    order = {name: i for i, name in enumerate(plan.mechanisms)}
    cells.sort(key=lambda c: (c.num_heads, order.get(c.mechanism, len(order)), c.seed))
    return tuple(cells)


CURVES = {
    "validation_accuracy": "validation accuracy",
    "validation_loss": "validation loss",
    "train_loss": "training loss",
}


def describe(results: Results, cost: str = "flops", margin: float | None = None) -> dict[str, Any]:
    """Return everything the page shows of a comparison.

    Args:
        results: the comparison.
        cost: "flops", "latency" or "parameters".
        margin: a fraction; None: the margin of the results.
    """
    if margin is not None and not isinstance(margin, (int, float)):
        raise ConfigError(f"margin={margin!r:.40} is not a number; give a fraction such as 0.01.")
    verdict = judge(results, margin=margin, cost=cost)
    timed = all(results.speed(*pair) is not None for pair in results.pairs())
    return {
        "title": results.title,
        "recipe": results.recipe,
        "scale": results.scale,
        "baseline": results.baseline,
        "margin": verdict.margin,
        "margin_text": verdict.metric.in_unit(verdict.metric.margin(verdict.margin)),
        "quality": {
            "name": verdict.metric.axis,
            "percent": verdict.metric.kind == "share",
            "rising": verdict.metric.rising,
        },
        "cost": cost,
        "costs": [cost for cost in COSTS if cost != "latency" or timed],
        "outcome": verdict.outcome,
        "sentence": sentence(verdict, results),
        "notes": notes(verdict, results),
        "tables": [_table(sheet) for sheet in tables(results, verdict)],
        "points": _points(results, verdict),
        "drawn": _drawn(verdict),
        "floors": [
            [name, verdict.metric.drawn(value)]
            for name, value in quality_floors(results, verdict).items()
        ],
        "curves": {name: _curves(results, name) for name in CURVES},
        "curve_names": CURVES,
        "looks": _looks(results),
        "command": results.command,
        "started": results.started,
    }


def _drawn(verdict: Verdict) -> list[str]:
    """Return the mechanisms of the first figure: the baseline, what suffices, then the best."""

    def place(one: Comparison) -> tuple[bool, float]:
        return one.sufficiency != SUFFICES, -verdict.quality(one.mechanism, one.num_heads).mean

    names = [one.mechanism for one in sorted(verdict.comparisons, key=place)]
    return list(dict.fromkeys([verdict.baseline, *names]))[:MOST_DRAWN]


def _looks(results: Results) -> dict[str, int]:
    styles = line_styles(mechanism for mechanism, _ in results.pairs())
    light = [colour for colour, _ in COLOURS]
    return {name: light.index(style.colour) for name, style in styles.items()}


def _points(results: Results, verdict: Verdict) -> list[dict[str, Any]]:
    drawn = points(results, verdict)
    qualities = [verdict.quality(point.mechanism, point.num_heads).mean for point in drawn]
    costs = [point.cost for point in drawn]
    on_front = front(list(zip(costs, qualities, strict=True)))
    found = [verdict.find(point.mechanism, point.num_heads) for point in drawn]
    return [
        {
            "mechanism": point.mechanism,
            "heads": point.num_heads,
            "cost": point.cost,
            "mean": point.mean,
            "low": point.low,
            "high": point.high,
            "front": best,
            "verdict": None if comparison is None else comparison.sufficiency,
        }
        for point, best, comparison in zip(drawn, on_front, found, strict=True)
    ]


def front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Return for each (cost, quality) whether it is on the Pareto front."""
    return [
        not any(c <= cost and q >= quality and (c, q) != (cost, quality) for c, q in points)
        for cost, quality in points
    ]


def _curves(results: Results, name: str) -> list[dict[str, Any]]:
    curves = []
    for mechanism, heads in results.pairs():
        by_seed = [[e[name] for e in cell.epochs] for cell in results.select(mechanism, heads)]
        means = [summarise(values).mean for values in zip(*by_seed, strict=False)]
        points = [[n, value] for n, value in enumerate(means, start=1) if math.isfinite(value)]
        curves.append({"mechanism": mechanism, "heads": heads, "points": points})
    return curves


def _table(sheet: Sheet) -> dict[str, Any]:
    return {
        "title": sheet.title,
        "columns": list(sheet.columns),
        "words": list(sheet.words),
        "caption": sheet.caption,
        "lines": [
            {"cells": list(line.cells), "reference": line.is_reference, "first": line.starts_group}
            for line in sheet.lines
        ],
    }
