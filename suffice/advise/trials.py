"""How right the adviser is about data that it has not seen: each is left out once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from suffice.advise.evidence import (
    Library,
    comparisons,
    data_of,
    packaged,
    recipe_of,
    scope_of,
    suffices,
    task_of,
)
from suffice.measure import Comparison, Results
from suffice.models.composition import Composition
from suffice.recipes import Recipe
from suffice.recipes.atlas import RECALL

MARGINS = (0.005, 0.01, 0.02, 0.05)
NONE = "none named"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What would have been advised for a comparison's data, by those of other data.

    Args:
        source: file of the comparison.
        data: its data.
        margin: that was asked for.
        named: the cheapest composition that was known to suffice; None = none was.
        outcome: what the comparison says of it: "suffices", "does not suffice" or "undecided";
            "none named" where Standard stays.
    """

    source: str
    data: str
    margin: float
    named: str | None
    outcome: str


def trials(margins: Sequence[float] = MARGINS) -> list[Trial]:
    """Return what would have been advised for every comparison that comes with the package."""
    return [
        trial
        for source, results in packaged().items()
        if (chosen := recipe_of(results)) is not None and chosen.task not in RECALL
        for trial in _trials(source, results, chosen, margins)
    ]


def _trials(
    source: str, results: Results, chosen: Recipe, margins: Sequence[float]
) -> Iterator[Trial]:
    heads = max(heads for _, heads in results.pairs())
    asked, data = scope_of(results, chosen, heads), data_of(chosen)
    for margin in margins:
        library = Library(task_of(chosen), (), margin, asked, without=data)
        named = _named(library, [c for c in comparisons(results, margin) if c.num_heads == heads])
        yield Trial(
            source=source,
            data=data,
            margin=margin,
            named=named and named.mechanism,
            outcome=named.sufficiency if named else NONE,
        )


def _named(library: Library, compared: list[Comparison]) -> Comparison | None:
    """Return the cheapest composition that is known to suffice."""
    cheapest = sorted((one for one in compared if one.cheaper), key=lambda one: one.cost.order)
    known = (c for c in cheapest if suffices(library.find(Composition.parse(c.mechanism))))
    return next(known, None)
