"""What the page knows from the start: models, mechanisms, names, defaults."""

from __future__ import annotations

import dataclasses
from itertools import product
from typing import Any

from suffice.patterns import Pattern
from suffice.studio import drawn
from suffice.studio.calculator import ARTICLE, KNOWN, LENGTHS, Composition, reported
from suffice.studio.calculator.article import FORMULA, SOURCE
from suffice.studio.calculator.composition import KERNELS, MIXINGS, PROJECTIONS
from suffice.view import expression
from suffice.view.looks import COLOURS, FREE


def facts(served: bool) -> dict[str, Any]:
    """Return them as plain data."""
    return {"served": served, "calculator": _calculator(), "patterns": _patterns()}


def _calculator() -> dict[str, Any]:
    return {
        "empty": Composition().to_json(),
        "lengths": list(LENGTHS),
        "tensors": _tensors(),
        "known": [
            {"model": known.model.to_json(), "length": known.length, "source": known.source}
            for known in KNOWN
        ],
        "article": {
            "source": SOURCE,
            "formula": FORMULA,
            "model": ARTICLE.to_json(),
            "claims": [claim.to_json() for claim in reported()],
        },
    }


def _tensors() -> dict[str, int]:
    """Return how many tensors a layer keeps for each token, by what it is made of."""
    found = {}
    for projections, kernel, mixing, rotary in product(
        PROJECTIONS, KERNELS, MIXINGS, (False, True)
    ):
        spec = Composition(
            d_model=2,
            num_heads=1,
            projections=projections,
            kernel=kernel,
            mixing=mixing,
            mixing_size=int(mixing != "NoMixing"),
            rotary=rotary,
        ).spec()
        words = [projections, kernel, mixing, *["rotary"] * rotary]
        found[" ".join(words)] = spec.cost(1).state_numbers // spec.widths.kv
    return found


def _patterns() -> dict[str, Any]:
    return {
        "kinds": {name: _fields(kind) for name, kind in Pattern.table.items()},
        "mechanisms": drawn.sketches(),
        "lengths": list(drawn.LENGTHS),
        "colours": COLOURS,
        "free": FREE,
    }


def _fields(kind: type) -> list[list[Any]]:
    """Return the name of each field, and its default where it has one; patterns as code."""
    found = []
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING:
            found.append([field.name])
        else:
            value = field.default
            found.append([field.name, expression(value) if isinstance(value, Pattern) else value])
    return found
