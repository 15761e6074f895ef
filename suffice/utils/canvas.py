"""A blank figure in the report's style; nothing of matplotlib's global state is changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO, StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


COLOURS = (
    ("#3d4451", "#c3cad6"),
    ("#c2700a", "#f0a23c"),
    ("#0072b2", "#56b4e9"),
    ("#a8437e", "#e08fc0"),
    ("#00855f", "#35c79b"),
    ("#b23a12", "#ff7f50"),
    ("#6a51a3", "#a99be0"),
    ("#7a6a00", "#d9c64a"),
)
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "p")
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.2, 1.2, 1.2)))
KNOWN = ("standard", "optimised", "efficient", "super_attention", "gqa", "mqa")

INK = ("#1f2430", "#e6e9ef")
FAINT = ("#5f6775", "#a2aab8")
GRID = ("#d9dde4", "#363d4a")
PAGE = ("#ffffff", "#14171d")
BAND = ("#e6efe9", "#1f332a")


@dataclass(frozen=True, kw_only=True)
class LineStyle:
    colour: str
    marker: str
    dash: str | tuple[int, tuple[float, ...]]


def line_styles(mechanisms: Iterable[str]) -> dict[str, LineStyle]:
    """Assign every mechanism a colour, a marker and a dash pattern.

    The best known mechanisms always have the same style; others take the remaining colours in
    the order given, and each time these begin again, the next marker.

    Example:
        >>> line_styles(["mine", "standard"])["standard"].marker
        'o'
    """
    names = list(dict.fromkeys(mechanisms))
    places = {name: (KNOWN.index(name), 0) for name in names if name in KNOWN}
    taken = {place for place, _ in places.values()}
    free = [place for place in range(len(COLOURS)) if place not in taken]
    rounds = 0
    for name in names:
        if name in KNOWN:
            continue
        if not free:
            free, rounds = list(range(1, len(COLOURS))), rounds + 1
        places[name] = free.pop(0), rounds
    return {
        name: LineStyle(
            colour=COLOURS[place][0],
            marker=MARKERS[(place + 3 * turn) % len(MARKERS)],
            dash=DASHES[(place + turn) % len(DASHES)],
        )
        for name, (place, turn) in ((name, places[name]) for name in names)
    }


def colours_by_theme() -> dict[str, str]:
    """Return the colour on a dark page of every colour on a light one."""
    return dict([*COLOURS, INK, FAINT, GRID, PAGE, BAND])


DPI = 160
WIDE_RANGE = 30.0  # ratio of a log scale's ends beyond which it has ticks at decades alone


@contextmanager
def style() -> Iterator[None]:
    """Draw in the report's style inside the block, whatever the user's own settings are."""
    import matplotlib
    from cycler import cycler

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.family": "sans-serif",
                "font.sans-serif": ["DejaVu Sans"],
                "font.size": 9.0,
                "axes.titlesize": 10.0,
                "axes.titleweight": "bold",
                "axes.titlelocation": "left",
                "axes.labelsize": 9.0,
                "axes.labelcolor": INK[0],
                "axes.edgecolor": FAINT[0],
                "axes.linewidth": 0.8,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.grid": True,
                "axes.axisbelow": True,
                "axes.prop_cycle": cycler(color=[INK[0]]),
                "axes.facecolor": "none",
                "figure.facecolor": PAGE[0],
                "grid.color": GRID[0],
                "grid.linewidth": 0.7,
                "text.color": INK[0],
                "text.parse_math": False,
                "xtick.color": FAINT[0],
                "ytick.color": FAINT[0],
                "xtick.labelcolor": INK[0],
                "ytick.labelcolor": INK[0],
                "lines.linewidth": 1.8,
                "lines.markersize": 6.0,
                "errorbar.capsize": 3.0,
                "legend.frameon": False,
                "svg.fonttype": "none",
            }
        )
        yield


def blank(
    rows: int, columns: int, *, width: float, height: float, **sharing: str
) -> tuple[Figure, list[list[Axes]]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **sharing)
    return figure, [list(row) for row in axes]


def panels_width(columns: int) -> float:
    """Return the width of a figure with this many panels side by side, in inches."""
    return round(1.2 + columns * max(2.8, min(3.5, 8.7 / columns)), 6)


ENTRY = 1.7  # inches of a name in a legend


def legend(figure: Figure, styles: dict[str, LineStyle]) -> None:
    """Put one legend of the mechanisms above all axes."""
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], color=line_style.colour, linestyle=line_style.dash, marker=line_style.marker)
        for line_style in styles.values()
    ]
    # texts are set afterwards: a legend would leave out a name that starts with an underscore
    columns = max(1, min(len(lines), int(figure.get_figwidth() / ENTRY)))
    box = figure.legend(lines, ["x"] * len(lines), loc="outside upper center", ncols=columns)
    for text, name in zip(box.get_texts(), styles, strict=True):
        text.set_text(name)


def plain_powers(axis: Axis) -> None:
    """Label a log scale with plain numbers, as its own labels are formulas, which are not drawn."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    low, high = sorted(axis.get_view_interval())
    axis.set_major_locator(LogLocator(subs=(1.0,) if high > WIDE_RANGE * low else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


WITHOUT_DATE = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def svg(figure: Figure, name: str, *, transparent: bool = False) -> str:
    """Return a figure as SVG; equal figures of a name give equal texts."""
    import matplotlib

    stream = StringIO()
    with style():
        matplotlib.rcParams["svg.hashsalt"] = name
        figure.savefig(stream, format="svg", transparent=transparent, metadata=WITHOUT_DATE)
    return stream.getvalue()


def png(figure: Figure) -> bytes:
    stream = BytesIO()
    with style():
        figure.savefig(stream, format="png", dpi=DPI)
    return stream.getvalue()
