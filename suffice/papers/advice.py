"""The evidence that `suffice advise` quotes: what the published comparisons show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path

from suffice.errors import ConfigError
from suffice.measure.advise.evidence import FILE, SHARED, SINGLE, Evidence, evidence_of
from suffice.measure.plan import MARGIN
from suffice.measure.published import path_of, published_names, read_published
from suffice.models.composition import STANDARD
from suffice.recipes import recipe
from suffice.recipes.atlas import ATLAS
from suffice.utils.files import write_atomic


def evidence() -> Iterator[Evidence]:
    """Yield what each published comparison shows, judged by its cells alone."""
    for name in published_names():
        content = read_published(name)
        results = replace(content.results, rows={})  # answers are not kept for all of them
        try:
            chosen = recipe(results.recipe, scale=results.scale)
        except ConfigError:  # of no recipe that the package has
            continue
        if results.baseline == STANDARD:
            alone = results.recipe in ATLAS  # each of its rows is judged by itself
            yield from evidence_of(results, chosen, f"{name}.json", MARGIN, together=not alone)


def text() -> str:
    """Return the content of the file: a table for each comparison, a line for each row."""
    tables = []
    for shared, rows in groupby(map(asdict, evidence()), key=lambda e: [e[n] for n in SHARED]):
        lines = ",\n  ".join(json.dumps([row[name] for name in SINGLE]) for row in rows)
        facts = json.dumps(dict(zip(SHARED, shared, strict=True)))
        tables.append(f'{facts[:-1]}, "rows": [\n  {lines}\n]}}')
    return "[\n" + ",\n".join(tables) + "\n]\n"


def write() -> Path:
    """Write the file of the package, and return it."""
    path = path_of("x").parents[1].joinpath(*FILE)
    write_atomic(path, text())
    return path
