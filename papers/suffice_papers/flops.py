"""The paper's analysis of FLOPs: equation 24 and the executed FLOPs, in tables and figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from suffice.comparison.sentence import count_heads
from suffice.errors import check_known
from suffice.presets import preset, takes_length
from suffice.utils.canvas import GRID, PAGE, blank, legend, line_styles, png, style, svg
from suffice.utils.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console


PAPER_CONSTANTS = {"standard": 15, "optimised": 12, "super_attention": 12, "efficient": 9}
MECHANISMS = tuple(PAPER_CONSTANTS)
HEADS = (1, 2, 4, 8)
POWERS = tuple(2**power for power in range(4, 15))  # tokens and features of the heatmaps
PASSES = 3  # a forward and a backward, which costs twice as much
PUBLISHED = (30, 25, 20, 16)  # average percentages, in the order of the paper's text
IN_ORDER, REVERSED = HEADS, HEADS[::-1]  # heads they belong to: by appendix B.2, by figure 6 of v3


def paper_flops(mechanism: str, *, length: int, d_model: int, num_heads: int) -> int:
    """Return equation 24 of arXiv:2403.01643: C l d + 15 h l^2 for forward and backward.

    It has neither a d^2 nor an l^2 d term, so it does not count matrix products; its constants fit
    three times the elementwise work (bias additions, scaling, a five-operation softmax). It is
    here to reproduce the paper's figures; compare costs with `AttentionSpec.cost`.

    Args:
        mechanism: standard, optimised, efficient or super_attention.
        length: tokens, l.
        d_model: features, d.
        num_heads: heads, h.

    Raises:
        ConfigError: for another mechanism.

    Example:
        >>> paper_flops("standard", length=64, d_model=128, num_heads=4)
        368640
    """
    check_known("mechanism of equation 24", mechanism, PAPER_CONSTANTS)
    return PAPER_CONSTANTS[mechanism] * length * d_model + 15 * num_heads * length * length


def executed(mechanism: str, *, length: int, d_model: int, num_heads: int) -> int:
    """Return the FLOPs of the matrix products of a forward and a backward pass.

    Example:
        >>> executed("standard", length=64, d_model=128, num_heads=4)
        31457280
    """
    options = {"length": length} if takes_length(mechanism) else {}
    return PASSES * preset(mechanism, d_model, num_heads, **options).cost(length).flops


@dataclass(frozen=True, kw_only=True)
class Count:
    """One way to count."""

    title: str
    of: Callable[..., int]


COUNTS = {
    "paper": Count(title="equation 24", of=paper_flops),
    "executed": Count(title="true FLOPs", of=executed),
}


def extra(count: Count, mechanism: str, num_heads: int) -> list[list[float]]:
    """Return how much more Standard needs than a mechanism, as a share of what that one needs.

    Shapes:
        a list for each d_model of POWERS, in it a number for each length of POWERS
    """
    return [
        [
            count.of("standard", length=length, d_model=d_model, num_heads=num_heads)
            / count.of(mechanism, length=length, d_model=d_model, num_heads=num_heads)
            - 1
            for length in POWERS
        ]
        for d_model in POWERS
    ]


def average(grid: list[list[float]]) -> float:
    """Return the mean of a grid's numbers.

    Example:
        >>> [round(100 * average(extra(COUNTS["paper"], "efficient", h)), 1) for h in HEADS]
        [29.7, 24.9, 20.3, 16.2]
    """
    numbers = [number for row in grid for number in row]
    return sum(numbers) / len(numbers)


def right_order(averages: dict[int, float]) -> tuple[int, ...] | None:
    """Return the heads that the published averages belong to, by averages computed; None: neither.

    Args:
        averages: shares by number of heads.
    """
    for order in (IN_ORDER, REVERSED):
        pairs = zip(PUBLISHED, order, strict=True)
        if all(round(100 * averages[heads]) == percent for percent, heads in pairs):
            return order
    return None


LENGTH = 64  # of the slopes, as in the paper
WIDTHS = tuple(range(64, 1025, 64))  # features of the slopes
SURFACE = tuple(range(128, 2049, 128))  # tokens and features of the surfaces
DEEP = "#00476b"  # of the highest ratios; the lowest have the page's colour


def slopes() -> Figure:
    """Draw FLOPs over the features at 64 tokens and one head, a panel for each way to count."""
    styles = line_styles(MECHANISMS)
    with style():
        figure, axes = blank(1, len(COUNTS), width=9.0, height=3.9)
        for panel, count in zip(axes[0], COUNTS.values(), strict=True):
            for mechanism, line_style in styles.items():
                counted = [_of(count, mechanism, LENGTH, width) / 1e6 for width in WIDTHS]
                options = {
                    "marker": line_style.marker,
                    "linestyle": line_style.dash,
                    "markersize": 4,
                }
                panel.plot(WIDTHS, counted, color=line_style.colour, markevery=3, **options)
            panel.set_title(f"{count.title}, {LENGTH} tokens, 1 head")
            panel.set_xlabel("features, d_model")
            panel.set_ylim(bottom=0)
        axes[0][0].set_ylabel("FLOPs, forward and backward, millions")
        legend(figure, styles)
    return figure


def surfaces() -> Figure:
    """Draw FLOPs over tokens and features, a column for each mechanism; Standard as a net."""
    import numpy as np
    from matplotlib.figure import Figure

    styles = line_styles(MECHANISMS)
    lengths, widths = np.meshgrid(SURFACE, SURFACE)
    with style():
        figure = Figure(figsize=(12.0, 6.4), layout="constrained")
        figure.get_layout_engine().set(rect=(0.02, 0.0, 0.98, 1.0))  # it sees no label of height
        axes = figure.subplots(
            len(COUNTS), len(MECHANISMS), squeeze=False, subplot_kw={"projection": "3d"}
        )
        for row, count in zip(axes, COUNTS.values(), strict=True):
            net = _surface(count, "standard")
            for panel, (mechanism, line_style) in zip(row, styles.items(), strict=True):
                mesh = (lengths, widths, _surface(count, mechanism))
                panel.plot_surface(*mesh, color=line_style.colour, alpha=0.75, linewidth=0)
                if mechanism != "standard":
                    panel.plot_wireframe(
                        lengths, widths, net, color=styles["standard"].colour, linewidth=0.4
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


def _surface(count: Count, mechanism: str):
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


SIZES = {  # tokens and features of the models in version 2 of the paper
    "IMDB": (32, 32),
    "Amazon": (64, 64),
    "MNIST": (64, 128),
    "CIFAR100": (256, 256),
    "ImageNet": (256, 768),
}
TASK_HEADS = 4
LOOK: dict[str, Any] = {
    "box": box.SIMPLE_HEAD,
    "show_edge": False,
    "pad_edge": False,
    "padding": (0, 1, 0, 0),
    "title_justify": "left",
}


def flops(folder: Path, console: Console) -> list[Path]:
    """Print the counts, draw the paper's figures of FLOPs and return their files."""
    console.print(ratios())
    console.print(sizes())
    for sentence in sentences():
        console.print(sentence, markup=False, highlight=False)
    return draw(folder)


def draw(folder: Path) -> list[Path]:
    """Draw every figure into a folder, as PNG and SVG, and return the files.

    Raises:
        DataError: if a file cannot be written.
    """
    paths = []
    for name, make in FIGURES.items():
        figure = make()
        for ending, content in (("png", png(figure)), ("svg", svg(figure, name))):
            paths.append(folder / f"{name}.{ending}")
            write_atomic(paths[-1], content)
    return paths


def averages(count: str) -> dict[int, float]:
    """Return by heads how much more Standard needs than Efficient on average, as a share."""
    return {heads: average(extra(COUNTS[count], "efficient", heads)) for heads in HEADS}


def ratios() -> Table:
    """Return the averages and the highest ratios of the heatmaps, next to the paper's."""
    table = Table(
        "heads",
        "equation 24",
        "highest",
        "B.2 says",
        "figure 6 says",
        "true FLOPs",
        "highest",
        **LOOK,
        title="How much more Standard needs than Efficient, 16 to 16,384 tokens and features",
    )
    text = dict(zip(IN_ORDER, PUBLISHED, strict=True))
    caption = dict(zip(IN_ORDER, reversed(PUBLISHED), strict=True))
    for heads in HEADS:
        grids = [extra(count, "efficient", heads) for count in COUNTS.values()]
        ours = [
            f"{number:.1%}" for grid in grids for number in (average(grid), max(map(max, grid)))
        ]
        said = (f"{text[heads]}%", f"{caption[heads]}%")
        table.add_row(str(heads), *ours[:2], *said, *ours[2:])
    return table


def sizes() -> Table:
    """Return both counts of one layer at the sizes of the paper's tasks."""
    table = Table(
        "task",
        "size",
        "mechanism",
        "equation 24",
        "ratio",
        "true",
        "ratio",
        **LOOK,
        title=f"MFLOPs of one layer of tokens x features, forward and backward, {TASK_HEADS} heads",
    )
    for task, (length, d_model) in SIZES.items():
        at = {"length": length, "d_model": d_model, "num_heads": TASK_HEADS}
        for mechanism in MECHANISMS:
            row = [task, f"{length} x {d_model}", mechanism]
            for count in COUNTS.values():
                ours, base = count.of(mechanism, **at), count.of("standard", **at)
                row += [f"{ours / 1e6:,.3f}", f"{ours / base:.2f}"]
            table.add_row(*row)
    return table


def sentences() -> list[str]:
    """Return what the counts say about the paper's words, from numbers computed here."""
    shares = averages("paper")
    highest = max(max(map(max, extra(COUNTS["paper"], "efficient", heads))) for heads in HEADS)
    listed = "/".join(f"{100 * shares[heads]:.1f}" for heads in HEADS)
    true = average(extra(COUNTS["executed"], "efficient", 1))
    return [_captions(listed, right_order(shares)), *_readings(highest, true)]


def _captions(listed: str, order: tuple[int, ...] | None) -> str:
    """Say which of the paper's two contradicting orders of its averages is right."""
    counted = f"Equation 24 gives {listed}% for {_named(HEADS)} heads"
    if order is None:
        return f"{counted}: neither appendix B.2 nor the caption of figure 6 says so."
    right, wrong = "the text of appendix B.2", "the caption of figure 6 in v3"
    if order != IN_ORDER:
        right, wrong = wrong, right
    said = _named(PUBLISHED)
    return f"{counted}: {right} is right ({said}% for {_named(order)} heads), {wrong} is reversed."


def _readings(highest: float, true: float) -> list[str]:
    return [
        f"The highest ratio of equation 24 is {highest:.1%}; it depends on heads * tokens / "
        "features alone, tends to 2/3 as that falls and to 0 as it rises, so the saving shrinks "
        "with the length, where B.2 says it grows.",
        f"Counted as executed Standard needs {true:.1%} more on average, whatever the heads: the "
        "ratio is features / (features + tokens). Equation 24 has no product of matrices in it.",
    ]


def _named(numbers: tuple[int, ...]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}"
