"""Tables as text, and what all of them say alike."""

from __future__ import annotations

from dataclasses import dataclass, replace

from suffice.measure.report.rows import Row

PAPER = "paper"  # what stands in place of a mechanism's name before the paper's own figures


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a table.

    Args:
        cells: one text per column.
        from_paper: whether these are the paper's figures rather than ours.
        starts_group: whether a new number of heads starts here.
    """

    cells: tuple[str, ...]
    from_paper: bool = False
    starts_group: bool = False


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One table.

    Args:
        title: what it shows.
        columns: their heads; the first is text, the others are aligned to the right unless
            they are in `words`.
        lines: its lines, in order.
        words: columns that hold words.
        caption: how to read it.
    """

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    words: tuple[str, ...] = ()
    caption: str = ""


def starts(lines: list[Line], rows: list[Row], row: Row) -> bool:
    """Say whether a row opens a new number of heads below others."""
    first = next(r for r in rows if r.num_heads == row.num_heads)
    return bool(lines) and row is first


def seeds(rows: list[Row]) -> str:
    """Write how many seeds stand behind the means."""
    fewest, most = min(row.seeds for row in rows), max(row.seeds for row in rows)
    return f"{fewest} seed{'s' * (most > 1)}" if fewest == most else f"{fewest} to {most} seeds"


def source(rows: list[Row]) -> str:
    """Name where the paper's lines come from, if there are any."""
    sources = sorted({row.paper.source for row in rows if row.paper is not None})
    return f"Lines named {PAPER}: arXiv:2403.01643, {', '.join(sources)}." if sources else ""


def beside(sheet: Sheet, *differ: str) -> Sheet:
    """Say in the title, the caption and before each of the paper's lines that they differ.

    Args:
        sheet: a table.
        differ: in what they differ from ours, such as "size" and "data"; nothing if they do not.

    Example:
        >>> sheet = Sheet(title="a", columns=(), lines=(Line(cells=("paper",), from_paper=True),))
        >>> beside(sheet, "size").lines[0].cells
        ('paper (other size)',)
    """
    if not differ or not any(line.from_paper for line in sheet.lines):
        return sheet
    other = f"other {' and '.join(differ)}"
    name = f"{PAPER} ({other})"
    return replace(
        sheet,
        title=f"{sheet.title}; the paper's lines: {other}",
        lines=tuple(
            replace(line, cells=(name, *line.cells[1:])) if line.from_paper else line
            for line in sheet.lines
        ),
        caption=sheet.caption.replace(f"Lines named {PAPER}:", f"Lines named {name}:").rstrip()
        + " The paper's lines are not to be held against ours, neither figures nor ranks.",
    )
