"""The evidence that `suffice advise` quotes: what the published comparisons show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path

import numpy as np

from suffice.choose.evidence import SHARED, SINGLE, Evidence, evidence_of
from suffice.comparison.metrics import metric_of
from suffice.comparison.plan import MARGIN, same_training
from suffice.comparison.resolution import EVIDENCE, FIRST_SEEDS
from suffice.comparison.results import Results
from suffice.comparison.scores import Scores, difference_table
from suffice.errors import ConfigError
from suffice.models.composition import STANDARD
from suffice.train.recipes import Recipe, recipe
from suffice.utils.files import write_atomic
from suffice_papers.atlas.recipes import ATLAS
from suffice_papers.published import Published, path_of, published_names, read_published


def comparisons() -> Iterator[tuple[str, Published, Recipe]]:
    """Yield name, content and recipe of each published comparison."""
    for name in published_names():
        content = read_published(name)
        try:
            yield name, content, recipe(content.results.recipe, scale=content.scale)
        except ConfigError:  # of no recipe that the package has
            continue


def spreads() -> Iterator[dict[str, object]]:
    """Yield by how much the seeds of each published comparison differ; see `spread_of`."""
    for _, content, chosen in comparisons():
        spread = spread_of(content.results)
        if spread is not None and same_training(content.recipe, chosen):
            numbers = zip(("variance", "by_rows", "free"), spread, strict=True)
            yield {"recipe": chosen.name, "scale": chosen.scale, **dict(numbers)}


def spread_of(results: Results) -> tuple[float, float, int] | None:
    """Return the variance of a seed's difference to the baseline, and that by rows alone.

    The third number are the degrees of freedom of the first, of all mechanisms together. None where
    the test rows are not known, or no mechanism has `FIRST_SEEDS` seeds.
    """
    if results.data is None:
        return None
    scores = Scores(results, metric_of("accuracy"))
    pairs = [pair for pair in results.pairs() if pair[0] != results.baseline]
    tables = [difference_table(scores, *pair)[1].mean(axis=1) for pair in pairs]
    known = [values for values in tables if len(values) >= FIRST_SEEDS]
    free = sum(len(values) - 1 for values in known)
    if not free:
        return None
    variance = sum(float(np.var(values)) * len(values) for values in known) / free
    accuracy = float(np.mean([cell.test_accuracy for cell in results.cells]))
    return variance, accuracy * (1.0 - accuracy) / results.data.rows["test"], free


def evidence() -> Iterator[Evidence]:
    """Yield what each published comparison shows, judged by its cells alone."""
    for name, content, chosen in comparisons():
        results = replace(content.results, rows={})  # answers are not kept for all of them
        if results.baseline == STANDARD:
            alone = results.recipe in ATLAS  # each of its rows is judged by itself
            yield from evidence_of(results, chosen, f"{name}.json", MARGIN, together=not alone)


def text() -> str:
    """Return the content of the file: a line for each spread and each row of a comparison."""
    tables = []
    for shared, rows in groupby(map(asdict, evidence()), key=lambda e: [e[n] for n in SHARED]):
        lines = ",\n  ".join(json.dumps([row[name] for name in SINGLE]) for row in rows)
        facts = json.dumps(dict(zip(SHARED, shared, strict=True)))
        tables.append(f'{facts[:-1]}, "rows": [\n  {lines}\n]}}')
    parts = {"spreads": map(json.dumps, spreads()), "comparisons": tables}
    lists = (f'"{name}": [\n' + ",\n".join(lines) + "\n]" for name, lines in parts.items())
    return "{\n" + ",\n".join(lists) + "\n}\n"


def write() -> Path:
    """Write the file of the package, and return it."""
    path = path_of("x").parents[3].joinpath("suffice", *EVIDENCE)
    write_atomic(path, text())
    return path
