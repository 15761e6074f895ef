"""The report folder of a table: figures as PNG and SVG, the figures behind them as JSON and CSV."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from suffice.comparison.report.plots import difference_plot, learning_curves
from suffice.comparison.results import Results
from suffice.comparison.verdict import judge
from suffice.train.recipes import SMALL
from suffice.utils.canvas import blank, legend, line_styles, panels_width, png, style, svg
from suffice.utils.files import write_atomic
from suffice_papers.rows import CellTable, differs, to_csv
from suffice_papers.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from suffice.utils.canvas import LineStyle
    from suffice.utils.statistics import Summary
    from suffice_papers.tables import Measure


ABLATED = ("test_accuracy", "test_loss")


def curves(shown: CellTable) -> Figure:
    """Draw validation loss and accuracy by epoch: mean and 95% interval over seeds."""
    figure = learning_curves(_results(shown))
    return _named(figure, shown.request.table, [shown])


def differences(shown: CellTable) -> Figure:
    """Draw the basis of a verdict: paired differences to the baseline, and the margin."""
    results = _results(shown)
    return _named(difference_plot(results, judge(results)), shown.request.table, [shown])


def heads(shown: CellTable) -> Figure:
    """Draw test accuracy and loss by heads: ours with intervals, the paper's dotted if alike."""
    columns = [c for c in shown.request.table.columns if c.name in ABLATED]
    styles = line_styles(row.mechanism for row in shown.rows)
    with style():
        figure, axes = blank(
            1, len(columns), width=panels_width(len(columns)), height=3.6, sharex="all"
        )
        for panel, column in zip(axes[0], columns, strict=True):
            _heads_panel(panel, shown, column)
        legend(figure, styles)
    return _named(figure, shown.request.table, [shown])


def _heads_panel(axes: Axes, shown: CellTable, column: Measure) -> None:
    scale = 100 if column.rising else 1
    all_heads = shown.request.heads
    styles = line_styles(row.mechanism for row in shown.rows)
    alike = not differs(shown.request)
    for number, (mechanism, line_style) in enumerate(styles.items()):
        rows = [row for row in shown.rows if row.mechanism == mechanism]
        shift = 0.06 * (number - (len(styles) - 1) / 2)  # so that intervals stand side by side
        ours = [(place + shift, r.figures[column.name].ours) for place, r in enumerate(rows)]
        _line(axes, ours, scale, line_style)
        theirs = [(p, row.figures[column.name].paper) for p, row in enumerate(rows)]
        printed = [(p, scale * value) for p, value in theirs if value is not None and alike]
        axes.plot(
            [place + shift for place, _ in printed],
            [value for _, value in printed],
            color=line_style.colour,
            linestyle=":",
            marker=line_style.marker,
            markersize=3,
            markerfacecolor="none",
            linewidth=0.9,
        )
    axes.set_xticks(range(len(all_heads)), [str(number) for number in all_heads])
    axes.set_xlabel(
        "heads (solid: ours with 95% intervals; "
        + ("dotted: the paper's)" if alike else "the paper's differ)")
    )
    axes.set_title(column.title + (", %" if column.rising else ""))


def _line(
    axes: Axes, points: list[tuple[float, Summary | None]], scale: float, line_style: LineStyle
) -> None:
    known = [(x, summary) for x, summary in points if summary is not None]
    axes.errorbar(
        [x for x, _ in known],
        [scale * summary.mean for _, summary in known],
        yerr=[0.0 if s.sd is None else scale * (s.high - s.low) / 2 for _, s in known],
        color=line_style.colour,
        marker=line_style.marker,
        markersize=4,
        linestyle="-",
        linewidth=1.4,
    )


FACTS = ("answers", "chance", "majority", "data", "rows", "most_seeds", "command")
"""Fields of published results that their intervals rest on, besides the cells."""


def _results(shown: CellTable) -> Results:
    plan, published = shown.request.plan, shown.request.published
    order = {key: place for place, key in enumerate(shown.request.wanted)}
    known = {} if published is None else {n: getattr(published.results, n) for n in FACTS}
    cells = sorted(shown.request.row_cells, key=lambda cell: order[cell.key])
    return Results.of(plan, cells, **known)


def _named(figure: Figure, table: Table, parts: list[CellTable]) -> Figure:
    paper = all(part.request.recipe.scale == "paper" for part in parts)
    small = "" if paper else f" ({SMALL})"
    figure.supxlabel(f"{table.headline}{small}", fontsize=8)
    return figure


def scaling(table: Table, parts: list[CellTable]) -> Figure:
    """Draw test accuracy and loss of a table by parameters of the model, over its parts."""
    columns = [c for c in parts[0].request.table.columns if c.name in ABLATED]
    styles = line_styles(parts[0].request.table.mechanisms)
    with style():
        figure, axes = blank(1, len(columns), width=panels_width(len(columns)), height=3.6)
        for panel, column in zip(axes[0], columns, strict=True):
            scale = 100 if column.rising else 1
            for mechanism, line_style in styles.items():
                rows = [r for p in parts for r in p.rows if r.mechanism == mechanism and r.seeds]
                sizes = [row.figures["parameters_model"].ours.mean / 1e6 for row in rows]
                figures = [row.figures[column.name].ours for row in rows]
                _line(panel, list(zip(sizes, figures, strict=True)), scale, line_style)
            panel.set_xlabel("parameters, millions")
            panel.set_title(column.title + (", %" if column.rising else ""))
        legend(figure, styles)
    return _named(figure, table, parts)


ACROSS: dict[str, Callable[[Table, list[CellTable]], Figure]] = {"scaling": scaling}
FIGURES: dict[str, Callable[[CellTable], Figure]] = {
    "curves": curves,
    "differences": differences,
    "heads": heads,
}


def write_report(table: Table, shown: list[CellTable], folder: Path) -> Path:
    """Write a table's figures and numbers and return the folder.

    Args:
        table: table that names the figures.
        shown: tables of its cells.
        folder: folder of the report; created if absent.

    Raises:
        DataError: if a file cannot be written.
    """
    content = [part.to_json() for part in shown]
    write_atomic(folder / "table.json", json.dumps(content, indent=1) + "\n")
    write_atomic(folder / "table.csv", to_csv(shown))
    trained = [part for part in shown if part.request.row_cells]
    for name in table.figures:
        if name in ACROSS and trained:
            save(ACROSS[name](table, trained), folder / name)
    for part in trained:
        for name in [name for name in table.figures if name in FIGURES]:
            stem = name if len(shown) == 1 else f"{name}-{part.request.table.name}"
            save(FIGURES[name](part), folder / stem)
    return folder


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG and SVG; equal figures give equal files.

    Args:
        figure: figure to write.
        path: path without the ending.

    Raises:
        DataError: if a file cannot be written.
    """
    write_atomic(path.with_suffix(".png"), png(figure))
    write_atomic(path.with_suffix(".svg"), svg(figure, path.name))
