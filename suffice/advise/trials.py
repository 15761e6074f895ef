"""How right the adviser is about tasks that it has not seen: each is left out once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from suffice.advise.evidence import (
    Library,
    comparisons,
    data_of,
    packaged,
    scope_of,
    task_of,
)
from suffice.advise.parts import LEVEL, Effects, Table, known_by, near, table_of
from suffice.measure import Results
from suffice.measure.statistics import t_quantile
from suffice.measure.verdict import UNDECIDED
from suffice.models.composition import Composition

MARGINS = (0.005, 0.01, 0.02, 0.05)
NONE = "none named"
OPEN = UNDECIDED


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What would have been advised for a comparison's task, by those of other tasks.

    Args:
        source: file of the comparison.
        task: its data.
        tasks: other tasks near it.
        margin: that was asked for.
        named: the cheapest composition that was known to suffice; None = none was.
        by: "a comparison" or "its parts", which it was known by.
        outcome: what the comparison says of it: "suffices", "does not suffice" or "undecided";
            "none named" where Standard stays.
    """

    source: str
    task: str
    tasks: int
    margin: float
    named: str | None
    by: str
    outcome: str


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How often a prediction's interval holds the difference of the task that was left out.

    Args:
        source: file of the comparison.
        task: its data.
        recalls: whether its task asks for recall.
        tasks: other tasks near it.
        compositions: of the comparison.
        predicted: with an interval.
        covered: inside it, widened by the error of its seeds.
    """

    source: str
    task: str
    recalls: bool
    tasks: int
    compositions: int
    predicted: int
    covered: int


def coverages() -> list[Coverage]:
    """Return the coverage of every comparison that comes with the package."""
    found = (table_of(results, name) for name, results in packaged().items())
    return [_coverage(table) for table in found if table is not None]


def _coverage(table: Table) -> Coverage:
    others = near(table.scope, recalls=table.recalls, without=table.task)
    effects = Effects(others) if others else None
    inside = list(_inside(table, effects)) if effects is not None else []
    return Coverage(
        source=table.source,
        task=table.task,
        recalls=table.recalls,
        tasks=len({other.task for other in others}),
        compositions=len(table.rows),
        predicted=len(inside),
        covered=int(sum(inside)),
    )


def _inside(table: Table, effects: Effects) -> Iterator[bool]:
    for place, row in enumerate(table.rows):
        prediction = effects.predict(row)
        if prediction is None or prediction.high is None or prediction.low is None:
            continue
        times = t_quantile(LEVEL, prediction.tasks - 1)
        half = (prediction.high - prediction.low) / 2
        error = times * float(table.errors[place, place]) ** 0.5
        yield abs(table.differences[place] - prediction.mean) <= (half**2 + error**2) ** 0.5


def trials(margins: Sequence[float] = MARGINS) -> list[Trial]:
    """Return what would have been advised for every comparison that comes with the package."""
    return [
        trial
        for name, results in packaged().items()
        if task_of(results) is not None and (table := table_of(results, name)) is not None
        for trial in _trials(results, table, margins)
    ]


def _trials(results: Results, table: Table, margins: Sequence[float]) -> Iterator[Trial]:
    others = near(table.scope, without=table.task)
    effects = Effects(others) if others else None
    for margin in margins:
        library = Library(
            task_of(results) or "", (), margin, scope_of(results), without=data_of(results)
        )
        verdicts = {
            one.mechanism: one.sufficiency
            for one in comparisons(results, margin)
            if one.num_heads == table.heads
        }
        named, by = _named(table, library, effects, margin)
        outcome = verdicts[named] if named else NONE
        yield Trial(
            source=table.source,
            task=table.task,
            tasks=len({other.task for other in others}),
            margin=margin,
            named=named,
            by=by,
            outcome=outcome,
        )


def _named(
    table: Table, library: Library, effects: Effects | None, margin: float
) -> tuple[str | None, str]:
    """Return the cheapest composition that is known to suffice, and by what it is known."""
    for place in sorted(range(len(table.rows)), key=table.costs.__getitem__):
        name = table.names[place]
        composition = Composition.parse(name)
        if table.costs[place] >= 1.0 or library.loss(composition):
            continue
        prediction = None if effects is None else effects.predict(table.rows[place])
        if by := known_by(library.find(composition), prediction, margin):
            return name, by
    return None, ""
