"""The attention maps of a trained model as a figure: a row for each layer, a column a head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suffice.measure.report.canvas import blank, style
from suffice.measure.report.palette import FAINT, PAGE, looks
from suffice.reproduce.maps import LayerMap, Maps
from suffice.reproduce.shown import title_of
from suffice.reproduce.watch import told

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

NAMED = 36  # tokens, up to which each is named on the axes
SIDE = {True: 3.0, False: 2.1}  # inches of a map, with names and without


def maps_figure(one: Maps) -> Figure:
    """Draw what a model looks at: queries down, keys across, dark is much.

    Weights of one figure share a scale from 0 to their highest; effective maps, orange where a
    value is taken with a negative sign, share one around 0.
    """
    rows = [(layer, kind) for layer in one.layers for kind in _kinds(layer)]
    heads = one.key[1]
    picture = one.row.dim() == 3
    named = one.words is not None and len(one.words) <= NAMED
    columns, side = heads + picture, SIDE[named]
    with style():
        figure, axes = blank(
            len(rows), columns, width=1.2 + side * columns, height=0.9 + (side + 0.3) * len(rows)
        )
        ends = {kind: _end(one, kind) for kind in ("weights", "effective")}
        for line, (layer, kind) in zip(axes, rows, strict=True):
            maps = line[picture:]
            for head, panel in enumerate(maps):
                image = _panel(
                    panel, getattr(layer, kind)[head], ends[kind], signed=kind != "weights"
                )
                panel.set_title(f"head {head}" if line is axes[0] else "", fontsize=8)
                _axis(panel, one.words if named else None, first=head == 0)
            maps[0].set_ylabel(f"{layer.layer}\n{_said(kind)}", fontsize=7.5)
            figure.colorbar(image, ax=maps, shrink=0.8, fraction=0.03).ax.tick_params(labelsize=6)
        if picture:
            _picture(axes, one.row)
        figure.suptitle(
            f"{title_of(one.request)}\n{told(one.key)}: label {one.label}, answer {one.answer}",
            fontsize=9,
        )
    return figure


def _kinds(layer: LayerMap) -> tuple[str, ...]:
    return ("weights",) if layer.effective is None else ("weights", "effective")


def _said(kind: str) -> str:
    return "weights S" if kind == "weights" else "effective, S W_A"


def _end(one: Maps, kind: str) -> float:
    """Return the largest number of all maps of a kind, whatever its sign."""
    found = [getattr(layer, kind) for layer in one.layers]
    return max((float(maps.abs().max()) for maps in found if maps is not None), default=1.0)


def _panel(axes: Axes, numbers: Tensor, end: float, *, signed: bool):  # noqa: ANN202 - matplotlib's
    """Draw one map."""
    from matplotlib.colors import LinearSegmentedColormap

    dark, warm = (looks((name,))[name].colour for name in ("efficient", "optimised"))
    colours = [warm, PAGE[0], dark] if signed else [PAGE[0], dark]
    return axes.imshow(
        numbers.float().numpy(),
        cmap=LinearSegmentedColormap.from_list("map", colours),
        vmin=-end if signed else 0.0,
        vmax=end,
        interpolation="nearest",
        aspect="equal",
    )


def _axis(axes: Axes, words: tuple[str, ...] | None, *, first: bool) -> None:
    """Name the tokens, or some of their positions."""
    axes.grid(visible=False)
    axes.tick_params(labelsize=5 if words else 6, length=0)
    if words is None:
        return
    places = range(len(words))
    axes.set_xticks(places, words, rotation=90)
    axes.set_yticks(places, words if first else [""] * len(words))


def _picture(axes: list[list[Axes]], row: Tensor) -> None:
    """Draw the input beside the first row and leave the places below it empty."""
    for line in axes[1:]:
        line[0].set_axis_off()
    first = axes[0][0]
    pixels = row.float().permute(1, 2, 0)
    pixels = (pixels - pixels.min()) / (pixels.max() - pixels.min()).clamp(min=1e-9)
    first.imshow(pixels.expand(-1, -1, 3).numpy(), interpolation="nearest")
    first.set_xticks([])
    first.set_yticks([])
    first.grid(visible=False)
    first.set_title("input", fontsize=8, color=FAINT[0])
