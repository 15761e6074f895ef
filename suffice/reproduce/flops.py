"""The paper's analysis of FLOPs: equation 24 and what is executed, in tables and figures."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from suffice.measure.report.canvas import png, style
from suffice.measure.report.svg import NOTHING
from suffice.measure.storage import write_atomic
from suffice.reproduce.flops_counts import (
    COUNTS,
    HEADS,
    IN_ORDER,
    MECHANISMS,
    PUBLISHED,
    average,
    extra,
    right_order,
)
from suffice.reproduce.flops_figures import FIGURES

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

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
    """Print the counts, draw the paper's figures of FLOPs and return their files.

    Args:
        folder: of the figures, each as PNG and SVG.
        console: where the tables go.

    Raises:
        DataError: if a file cannot be written.
    """
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
        for ending, content in (("png", png(figure)), ("svg", _svg(figure, name))):
            paths.append(folder / f"{name}.{ending}")
            write_atomic(paths[-1], content)
    return paths


def averages(count: str) -> dict[int, float]:
    """Return by heads how much more Standard needs than Efficient on average, as a share."""
    return {heads: average(extra(COUNTS[count], "efficient", heads)) for heads in HEADS}


def ratios() -> Table:
    """Return the averages and the highest ratios of the heatmaps, beside the paper's."""
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
    found = averages("paper")
    highest = max(max(map(max, extra(COUNTS["paper"], "efficient", heads))) for heads in HEADS)
    listed = "/".join(f"{100 * found[heads]:.1f}" for heads in HEADS)
    true = average(extra(COUNTS["executed"], "efficient", 1))
    return [_captions(listed, right_order(found)), *_readings(highest, true)]


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
    """Return numbers as words.

    Example:
        >>> _named((1, 2, 4))
        '1, 2 and 4'
    """
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}"


def _svg(figure: Figure, name: str) -> bytes:
    """Return a figure as an SVG file; equal figures give equal files."""
    import matplotlib

    stream = BytesIO()
    with style():
        matplotlib.rcParams["svg.hashsalt"] = name
        figure.savefig(stream, format="svg", metadata=NOTHING)
    return stream.getvalue()
