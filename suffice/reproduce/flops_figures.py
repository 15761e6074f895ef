"""The paper's figures of FLOPs, each with the true FLOPs beside it: slopes, surfaces, heatmaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suffice.measure.report.canvas import blank, legend, style
from suffice.measure.report.palette import GRID, PAGE, looks
from suffice.measure.sentence import count_heads
from suffice.reproduce.flops_counts import COUNTS, HEADS, MECHANISMS, POWERS, average, extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from suffice.reproduce.flops_counts import Count

LENGTH = 64  # of the slopes, as in the paper
WIDTHS = tuple(range(64, 1025, 64))  # features of the slopes
SURFACE = tuple(range(128, 2049, 128))  # tokens and features of the surfaces
DEEP = "#00476b"  # of the highest ratios; the lowest have the page's colour


def slopes() -> Figure:
    """Draw FLOPs over the features at 64 tokens and one head, a panel for each way to count."""
    found = looks(MECHANISMS)
    with style():
        figure, axes = blank(1, len(COUNTS), width=9.0, height=3.9)
        for panel, count in zip(axes[0], COUNTS.values(), strict=True):
            for mechanism, look in found.items():
                counted = [_of(count, mechanism, LENGTH, width) / 1e6 for width in WIDTHS]
                options = {"marker": look.marker, "linestyle": look.dash, "markersize": 4}
                panel.plot(WIDTHS, counted, color=look.colour, markevery=3, **options)
            panel.set_title(f"{count.title}, {LENGTH} tokens, 1 head")
            panel.set_xlabel("features, d_model")
            panel.set_ylim(bottom=0)
        axes[0][0].set_ylabel("FLOPs, forward and backward, millions")
        legend(figure, found)
    return figure


def surfaces() -> Figure:
    """Draw FLOPs over tokens and features, a column for each mechanism; Standard as a net."""
    import numpy as np
    from matplotlib.figure import Figure

    found = looks(MECHANISMS)
    lengths, widths = np.meshgrid(SURFACE, SURFACE)
    with style():
        figure = Figure(figsize=(12.0, 6.4), layout="constrained")
        figure.get_layout_engine().set(rect=(0.02, 0.0, 0.98, 1.0))  # it sees no label of height
        axes = figure.subplots(
            len(COUNTS), len(MECHANISMS), squeeze=False, subplot_kw={"projection": "3d"}
        )
        for row, count in zip(axes, COUNTS.values(), strict=True):
            net = _surface(count, "standard")
            for panel, (mechanism, look) in zip(row, found.items(), strict=True):
                mesh = (lengths, widths, _surface(count, mechanism))
                panel.plot_surface(*mesh, color=look.colour, alpha=0.75, linewidth=0)
                if mechanism != "standard":
                    panel.plot_wireframe(
                        lengths, widths, net, color=found["standard"].colour, linewidth=0.4
                    )
                panel.set_title(f"{mechanism}\n{count.title}", fontsize=8.5)
                panel.set_xlabel("tokens")
                panel.set_ylabel("features")
                if panel is row[0]:  # between two panels it would read as the other's
                    panel.set_zlabel("GFLOPs")
                panel.set_zlim(0, net.max())
                panel.view_init(elev=24, azim=-125)
                panel.tick_params(labelsize=6.5)
                panel.locator_params(nbins=5)
    return figure


def heatmaps() -> Figure:
    """Draw how much more Standard needs than Efficient, a column for each number of heads."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("share", [PAGE[0], GRID[0], DEEP])
    with style():
        figure, axes = blank(len(COUNTS), len(HEADS), width=12.0, height=6.2)
        for row, count in zip(axes, COUNTS.values(), strict=True):
            for panel, heads in zip(row, HEADS, strict=True):
                grid = extra(count, "efficient", heads)
                image = panel.imshow(
                    grid, origin="lower", vmin=0, vmax=1, cmap=colours, aspect="equal"
                )
                panel.set_title(
                    f"{count.title}, {count_heads(heads)}\naverage {average(grid):.1%}, "
                    f"highest {max(map(max, grid)):.1%}",
                    fontsize=8.5,
                )
                _powers(panel)
            row[0].set_ylabel("features, d_model")
        for panel in axes[-1]:
            panel.set_xlabel("tokens")
        bar = figure.colorbar(image, ax=[panel for row in axes for panel in row], shrink=0.7)
        bar.set_label("FLOPs that standard needs beyond efficient")
        bar.ax.yaxis.set_major_formatter("{x:.0%}")
    return figure


FIGURES = {"flops_slopes": slopes, "flops_surfaces": surfaces, "flops_heatmaps": heatmaps}


def _of(count: Count, mechanism: str, length: int, d_model: int) -> int:
    return count.of(mechanism, length=length, d_model=d_model, num_heads=1)


def _surface(count: Count, mechanism: str):  # noqa: ANN202 - an array of numpy, imported late
    import numpy as np

    rows = [[_of(count, mechanism, length, width) for length in SURFACE] for width in SURFACE]
    return np.array(rows, dtype=float) / 1e9


def _powers(panel: Axes) -> None:
    """Name every other power of two on both axes, and draw no lines over the cells."""
    places = range(0, len(POWERS), 2)
    names = [f"{POWERS[place]:,}" for place in places]
    panel.set_xticks(list(places), names, rotation=60, fontsize=7)
    panel.set_yticks(list(places), names, fontsize=7)
    panel.grid(visible=False)
