"""The table of what a task is scored by besides loss and accuracy."""

from __future__ import annotations

from suffice.measure.paper import PaperRow
from suffice.measure.report.lines import PAPER, Line, Sheet, seeds, source, starts
from suffice.measure.report.numbers import spread
from suffice.measure.report.rows import Row
from suffice.measure.statistics import Summary

FRACTIONS = ("balanced_accuracy",)  # written in percent


def further_sheet(rows: list[Row]) -> Sheet:
    """Every further score of the test split; no lines where the task has none."""
    names = list(dict.fromkeys(name for row in rows for name in row.scores))
    lines: list[Line] = []
    for row in rows if names else ():
        told = tuple(_written(row, name) for name in names)
        cells = (row.mechanism, str(row.num_heads), *told)
        lines.append(Line(cells=cells, starts_group=starts(lines, rows, row)))
        theirs = tuple(_of_paper(row.paper, name) for name in names)
        if any(theirs):
            lines.append(Line(cells=(PAPER, "", *theirs), from_paper=True))
    from_paper = any(line.from_paper for line in lines)
    return Sheet(
        title="Further scores, test",
        columns=("mechanism", "heads", *(name.replace("_", " ") for name in names)),
        lines=tuple(lines),
        caption=f"Mean over {seeds(rows)} ± sd; (rank) among equal heads. "
        + ("Balanced accuracy in percent. " if set(names) & set(FRACTIONS) else "")
        + (source(rows) if from_paper else ""),
    )


def _written(row: Row, name: str) -> str:
    """Write a score of one row with its place."""
    found = row.scores.get(name)
    if found is None:
        return "-"
    text = spread(found) if name in FRACTIONS else _plain(found)
    return f"{text} ({row.ranks[name]})" if name in row.ranks else text


def _plain(summary: Summary) -> str:
    sd = "" if summary.sd is None else f" ± {summary.sd:.2f}"
    return f"{summary.mean:.2f}{sd}"


def _of_paper(paper: PaperRow | None, name: str) -> str:
    """Write the paper's own score, empty where it prints none."""
    printed = None if paper is None else getattr(paper, f"test_{name}", None)
    return "" if printed is None else f"{printed:.2f}"
