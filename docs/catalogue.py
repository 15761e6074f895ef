"""Every mechanism by its published name, with its composition, cost and source.

`make docs` stores it as `suffice/view/catalogue.json`; a test compares the file with `catalogue()`.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from suffice.presets import PRESETS, TITLES, schedule, takes_length
from suffice.spec import AttentionSpec
from suffice.spec.cost import Cost
from suffice.view.catalogue import axes, describe, drawn_spec, sized, state

FILE = Path(__file__).parents[1] / "suffice/view/catalogue.json"
EVERY_PAIR, SOME_PAIRS = "Every pair", "Some pairs: sparse patterns"
MIXED, FEATURES = "Token mixing before attention", "Linear attention (no pairwise scores)"
RECURRENT = "No pairs: a state that decays or is corrected"
SEGMENTS = "Segments, and a memory of those before"
GROUPS = (EVERY_PAIR, MIXED, SOME_PAIRS, FEATURES, RECURRENT, SEGMENTS)
COUNTED_LAYERS = 2  # that costs are the means of
D_MODEL, HEADS, LENGTH = 256, 4, 1024


def mean_cost(name: str, d_model: int, num_heads: int, /, *, length: int) -> Cost:
    """Return the cost of a layer of a mechanism, the mean of two where layers differ.

    Example:
        >>> mean_cost("cla", 64, 4, length=9).state_numbers
        64
    """
    options = {"length": length} if takes_length(name) else {}
    specs = schedule(name, d_model, num_heads, depth=COUNTED_LAYERS, **options)
    costs = [spec.cost(length) for spec in specs]
    names = [field.name for field in fields(Cost)]
    return Cost(**{n: sum(getattr(cost, n) for cost in costs) // COUNTED_LAYERS for n in names})


def group(spec: AttentionSpec) -> str:
    """Return the one of `GROUPS` that a mechanism belongs to."""
    if "past" in spec.beyond_pairs:
        return SEGMENTS
    if spec.lane != "pairs":
        return FEATURES if spec.lane == "sums" else RECURRENT
    if "mixing" in spec.beyond_pairs:
        return MIXED
    if type(spec.pattern).__name__ in ("Full", "Causal"):
        return EVERY_PAIR
    return SOME_PAIRS


def catalogue() -> dict[str, Any]:
    """Return the mechanisms in groups, as plain data, with the sizes that the counts are of."""
    base = sized("standard", D_MODEL, HEADS, length=LENGTH).cost(LENGTH)
    rows = sorted((_row(name, base) for name in PRESETS), key=lambda r: GROUPS.index(r["group"]))
    return {
        "d_model": D_MODEL,
        "heads": HEADS,
        "length": LENGTH,
        "mechanisms": rows,
    }


def write(path: Path = FILE) -> None:
    """Write the catalogue."""
    path.write_text(json.dumps(catalogue(), indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


def _row(name: str, base: Cost) -> dict[str, Any]:
    spec = drawn_spec(name, D_MODEL, HEADS, length=LENGTH)
    cost, about = mean_cost(name, D_MODEL, HEADS, length=LENGTH), describe(PRESETS[name])
    return {
        "name": name,
        "title": TITLES[name],
        "group": group(spec),
        "axes": axes(spec),
        "parameters": cost.parameters,
        "parameters_ratio": round(cost.parameters / base.parameters, 4),
        "flops": cost.flops,
        "flops_ratio": round(cost.flops / base.flops, 4),
        "state": f"{cost.state_numbers:,} + fixed"
        if cost.state_numbers and cost.state_fixed
        else state(cost),
        "source": about.source,
        "citation": about.citation,
        "identifier": about.identifier,
    }
