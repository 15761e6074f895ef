"""Claims that the paper's own rows decide: its printed ranks and percentages."""

from __future__ import annotations

from suffice.measure.paper import paper_row
from suffice.reproduce.column import BLEU, TEST, TRAIN, Column
from suffice.reproduce.evidence.finding import Finding, percent
from suffice.reproduce.evidence.trained import means
from suffice.reproduce.rows import ranked
from suffice.reproduce.tables import table

COLUMNS: dict[str, Column] = {column.name: column for column in (*TRAIN, *TEST, BLEU)}


def rank(name: str, metric: str, heads: int, stated: dict[str, int]) -> Finding:
    """Hold printed ranks against the printed figures."""
    shown, column = table(name), COLUMNS[metric]
    values = {m: column.theirs(paper_row(shown.paper, m, heads)) for m in shown.mechanisms}
    places = ranked(values, column)
    told = [f"{m} {column.written(v)} is {places[m]}" for m, v in values.items() if m in stated]
    found = means(name, heads, column)
    ours = "" if found is None else f"{name}: " + _listed(ranked(found, column))
    return Finding(
        theirs="; ".join(told),
        ours=ours,
        holds=tuple(places[m] == place for m, place in stated.items()),
        tables=(name,) if ours else (),
    )


def gains_of_rows(stated: dict[str, float]) -> Finding:
    """Hold stated relative gains of training accuracy against the rows of the tables named."""
    told, holds = [], []
    for name, gain in stated.items():
        shown = table(name)
        rows = [paper_row(shown.paper, m, shown.heads[-1]) for m in ("super_attention", "standard")]
        found = rows[0].train_accuracy / rows[1].train_accuracy - 1
        told.append(f"{shown.source} {percent(found, digits=2)}")
        holds.append(abs(found - gain) < 0.0005)
    return Finding(theirs="; ".join(told), holds=tuple(holds))


def _listed(places: dict[str, int | None]) -> str:
    return ", ".join(f"{name} {place}" for name, place in places.items())
