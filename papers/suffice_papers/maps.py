"""Attention maps of trained models on one row of test data.

Letters: H query heads, T queries, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from suffice.comparison.answers import Key
from suffice.comparison.jobs import cell_name
from suffice.comparison.plan import FILE, read_plan, same_training
from suffice.comparison.report.sheet import Column, Sheet, sheet_of
from suffice.comparison.training import CellFiles
from suffice.data import Dataset
from suffice.data.dataset import Split
from suffice.errors import CheckpointError
from suffice.layers import AttentionMap, watched
from suffice.models import folder as model_folder
from suffice.models.folder import WEIGHTS
from suffice.train.recipes import SCALES
from suffice.train.scoring import ModelInputs, evaluating
from suffice.utils.canvas import FAINT, PAGE, blank, line_styles, style
from suffice_papers.request import TableRequest, request_cells
from suffice_papers.rows import title_of
from suffice_papers.sheets import csv_text
from suffice_papers.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelMaps:
    """Attention maps of one trained model on one row of test data."""

    request: TableRequest  # the table whose cell the model is
    key: Key  # mechanism, heads, seed
    layers: tuple[AttentionMap, ...]  # maps [1, H, T, S] of the layers, in order
    row: Tensor  # inputs of the row, pixels [C, H, W] or tokens [T]
    words: tuple[str, ...] | None  # texts of the tokens, where they are words
    label: int  # the right answer
    answer: int  # the model's


def request_maps(
    part: Table,
    *,
    scale: str | None,
    heads: tuple[int, ...] | None,
    out: Path | None,
    data: str | None = None,
) -> TableRequest:
    """Return the cells whose models are looked into: one for each mechanism.

    Args:
        part: the table they belong to.
        scale: scale of its recipe; None: the first of which there are weights, else small.
        heads: numbers of heads; None: the table's largest.
        out: working folder instead of the usual.
        data: the user's own files instead of the task's.
    """
    words: dict[str, Any] = {
        "heads": heads or (max(part.heads),),
        "seeds": 1,
        "out": out,
        "data": data,
    }
    if scale is None and out is not None and (out / FILE).exists():
        scale = str(read_plan(out).recipe.get("scale"))
    scales = SCALES if scale is None and out is None else (scale or SCALES[-1],)
    requests = [request_cells(part, scale=one, **words) for one in scales]
    return next(
        (one for one in requests if len(missing_weights(one)) < len(one.plan.cells)), requests[-1]
    )


def missing_weights(request: TableRequest) -> list[Key]:
    """Return the cells of a request without weights in its folder."""
    return [key for key in request.plan.cells if not weights_of(request, key).exists()]


def weights_of(request: TableRequest, key: Key) -> Path:
    """Return where the weights of a cell lie, there or not."""
    return CellFiles.of(request.folder, *key).model / WEIGHTS


def attention_maps(request: TableRequest, key: Key, dataset: Dataset) -> ModelMaps:
    """Return what a trained model looks at in the first row of test data without padding."""
    path = weights_of(request, key)
    stored = model_folder.read(path.parent)
    model, config = stored.model, stored.facts
    if not same_training(config.get("recipe", {}), request.recipe):
        raise CheckpointError(
            f"{path} was trained with other settings than recipe {request.recipe.name}, scale "
            f"{request.recipe.scale}; delete it, or name another folder with --out."
        )
    split = _first(dataset.test)
    reading = ModelInputs.of(split)
    prepared = reading._replace(inputs=dataset.prepare(reading.inputs))
    with evaluating(model), torch.inference_mode(), watched(model) as maps:
        logits = prepared.logits(model)
    words = dataset.vocabulary
    return ModelMaps(
        request=request,
        key=key,
        layers=tuple(maps),
        row=split.inputs[0],
        words=None if words is None else tuple(words[i] for i in split.inputs[0].tolist()),
        label=int(split.labels[0]),
        answer=int(logits[0].argmax()),
    )


def _first(split: Split) -> Split:
    row = 0
    if split.valid is not None:
        row = int(split.valid.all(dim=1).long().argmax())
    return split.take(torch.tensor([row]))


MAX_NAMED = 36  # tokens, up to which each is named on the axes
SIDE = {True: 3.0, False: 2.1}  # inches of a map, with names and without


def maps_figure(one: ModelMaps) -> Figure:
    """Draw what a model looks at: queries down, keys across, dark is much.

    Weights of one figure share a scale from 0 to their highest; effective maps, orange where a
    value is taken with a negative sign, share one around 0.
    """
    rows = [(layer, kind) for layer in one.layers for kind in _kinds(layer)]
    heads = one.key[1]
    picture = one.row.dim() == 3
    named = one.words is not None and len(one.words) <= MAX_NAMED
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
                    panel, getattr(layer, kind)[0, head], ends[kind], signed=kind != "weights"
                )
                panel.set_title(f"head {head}" if line is axes[0] else "", fontsize=8)
                _axis(panel, one.words if named else None, first=head == 0)
            maps[0].set_ylabel(f"{layer.layer}\n{_kind_label(kind)}", fontsize=7.5)
            figure.colorbar(image, ax=maps, shrink=0.8, fraction=0.03).ax.tick_params(labelsize=6)
        if picture:
            _picture(axes, one.row)
        figure.suptitle(
            f"{title_of(one.request)}\n{cell_name(one.key)}: "
            f"label {one.label}, answer {one.answer}",
            fontsize=9,
        )
    return figure


def _kinds(layer: AttentionMap) -> tuple[str, ...]:
    return ("weights", "effective") if layer.mixed else ("weights",)


def _kind_label(kind: str) -> str:
    return "weights S" if kind == "weights" else "effective, S W_A"


def _end(one: ModelMaps, kind: str) -> float:
    of_layers = [getattr(layer, kind) for layer in one.layers if kind in _kinds(layer)]
    return max((float(maps.abs().max()) for maps in of_layers), default=1.0)


def _panel(axes: Axes, numbers: Tensor, end: float, *, signed: bool):
    from matplotlib.colors import LinearSegmentedColormap

    dark, warm = (line_styles((name,))[name].colour for name in ("efficient", "optimised"))
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
    axes.grid(visible=False)
    axes.tick_params(labelsize=5 if words else 6, length=0)
    if words is None:
        return
    places = range(len(words))
    axes.set_xticks(places, words, rotation=90)
    axes.set_yticks(places, words if first else [""] * len(words))


def _picture(axes: list[list[Axes]], row: Tensor) -> None:
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


FIELDS = ("table", "scale", "mechanism", "heads", "seed", "layer", "head", "keys", "row_sum")
MIXED = ("effective_sum", "negative")


def maps_records(maps: list[ModelMaps]) -> list[dict[str, Any]]:
    """Return a record for each head of each layer of each model.

    Its `keys` are how many keys a query spreads its weights over: e to the entropy of its row,
    the mean over queries. `row_sum` is the sum of the row that is farthest from 1. Of the
    effective map, where there is one: the mean `effective_sum` of its rows, and which share of
    what is taken is taken with a `negative` sign.
    """
    return [
        {
            "table": one.request.table.name,
            "scale": one.request.recipe.scale,
            "mechanism": one.key[0],
            "heads": one.key[1],
            "seed": one.key[2],
            "layer": layer.layer,
            "head": head,
            **_numbers(layer, head),
        }
        for one in maps
        for layer in one.layers
        for head in range(layer.weights.shape[1])
    ]


def maps_sheet(maps: list[ModelMaps]) -> Sheet:
    """Lay out the models of one table, a line for each layer."""
    request = maps[0].request
    small = "" if request.recipe.scale == "paper" else " Trained at small scale."
    return sheet_of(
        f"Attention maps of {title_of(request)}",
        COLUMNS,
        [(one.key, layer, _over_heads(layer)) for one in maps for layer in one.layers],
        group=lambda row: row[0],
        caption="Of one row of test data, seed 0, mean over heads. Keys: how many a query spreads "
        "its weights over, e to the entropy. Row sums: the farthest from 1. Of S W_A: the mean "
        "sum of the rows of the effective map, and the share taken with a negative sign." + small,
    )


def _over_heads(layer: AttentionMap) -> dict[str, float | None]:
    heads = [_numbers(layer, head) for head in range(layer.weights.shape[1])]
    means = {
        name: None if heads[0][name] is None else sum(head[name] for head in heads) / len(heads)
        for name in ("keys", *MIXED)
    }
    return {**means, "row_sum": max((h["row_sum"] for h in heads), key=lambda s: abs(s - 1))}


def _mixed_column(title: str, name: str) -> Column:
    return Column(
        title=title, cell=lambda row: "" if row[2][name] is None else f"{row[2][name]:.2f}"
    )


COLUMNS = (
    Column(title="mechanism", cell=lambda row: row[0][0]),
    Column(title="heads", cell=lambda row: str(row[0][1])),
    Column(title="layer", cell=lambda row: row[1].layer, words=True),
    Column(title="keys", cell=lambda row: f"{row[2]['keys']:.2f} of {row[1].weights.shape[-1]}"),
    Column(title="row sums", cell=lambda row: f"{row[2]['row_sum']:.6f}"),
    _mixed_column("of S W_A", "effective_sum"),
    _mixed_column("negative", "negative"),
)


def maps_csv(maps: list[ModelMaps]) -> str:
    """Write one line for each record."""
    return csv_text((*FIELDS, *MIXED), maps_records(maps))


def keys_of(weights: Tensor) -> float:
    """Return over how many keys rows [T, S] of weights are spread.

    Example:
        >>> round(keys_of(torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]])), 3)
        3.0
    """
    return float(torch.special.entr(weights.double()).sum(-1).exp().mean())


def _numbers(layer: AttentionMap, head: int) -> dict[str, float | None]:
    weights = layer.weights[0, head].double()
    sums = weights.sum(-1)
    numbers: dict[str, float | None] = {
        "keys": keys_of(weights),
        "row_sum": float(sums[(sums - 1).abs().argmax()]),
        **dict.fromkeys(MIXED),
    }
    if layer.mixed:
        effective = layer.effective[0, head].double()
        numbers["effective_sum"] = float(effective.sum(-1).mean())
        numbers["negative"] = float(effective.clamp(max=0).sum().abs() / effective.abs().sum())
    return numbers
