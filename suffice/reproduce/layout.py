"""A table laid out as the paper lays it out, each row of ours above the paper's."""

from __future__ import annotations

from suffice.measure.report.sheets import PAPER, Line, Sheet
from suffice.reproduce.column import Column
from suffice.reproduce.rows import Figure, Row


def sheet(
    title: str, columns: tuple[Column, ...], found: list[Row], *, source: str, notes: list[str]
) -> Sheet:
    """Lay out rows of cells.

    Args:
        title: of the table.
        columns: in the paper's order.
        found: the rows, grouped by heads.
        source: the paper's table.
        notes: what the caption says besides.
    """
    shown = [column for column in columns if _known(column, found)]
    lines = []
    for place, row in enumerate(found):
        starts = place > 0 and row.num_heads != found[place - 1].num_heads
        seeds = str(row.seeds) if row.seeds else ""
        ours = [_ours(column, row.figures[column.name]) for column in shown]
        lines.append(
            Line(cells=(row.mechanism, str(row.num_heads), seeds, *ours), starts_group=starts)
        )
        if row.paper is not None:
            theirs = [_paper(column, row.figures[column.name]) for column in shown]
            lines.append(Line(cells=(PAPER, "", "", *theirs), from_paper=True))
    caption = (
        "Mean over seeds ± half of the 95% t interval; (rank) among equal heads; accuracies in "
        "percent. "
    )
    if any(line.from_paper for line in lines):
        caption += f"Lines named {PAPER}: arXiv:2403.01643, {source}. "
    return Sheet(
        title=title,
        columns=("mechanism", "heads", "seeds", *[column.title for column in shown]),
        lines=tuple(lines),
        caption=caption + " ".join(notes),
    )


def _known(column: Column, found: list[Row]) -> bool:
    """Say whether a column has any figure."""
    figures = [row.figures[column.name] for row in found]
    return any(figure.ours is not None or figure.paper is not None for figure in figures)


def _ours(column: Column, figure: Figure) -> str:
    """Write our figure; blank where nothing was trained."""
    if figure.ours is None:
        return ""
    text = column.written(figure.ours.mean)
    if figure.ours.sd is not None and not column.fixed:
        text += f" ± {column.written((figure.ours.high - figure.ours.low) / 2)}"
    return text + _rank(figure.rank)


def _paper(column: Column, figure: Figure) -> str:
    """Write the paper's figure; blank where it prints none."""
    return "" if figure.paper is None else column.written(figure.paper) + _rank(figure.paper_rank)


def _rank(rank: int | None) -> str:
    return "" if rank is None else f" ({rank})"
