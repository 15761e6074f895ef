"""What the attention maps of trained models say in numbers."""

from __future__ import annotations

import csv
import io
from typing import Any

import torch
from torch import Tensor

from suffice.measure.report.sheets import Line, Sheet
from suffice.reproduce.maps import LayerMap, Maps
from suffice.reproduce.shown import title_of

FIELDS = ("table", "scale", "mechanism", "heads", "seed", "layer", "head", "keys", "row_sum")
MIXED = ("effective_sum", "negative")
COLUMNS = ("mechanism", "heads", "layer", "keys", "row sums", "of S W_A", "negative")


def maps_records(found: list[Maps]) -> list[dict[str, Any]]:
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
        for one in found
        for layer in one.layers
        for head in range(len(layer.weights))
    ]


def maps_sheet(found: list[Maps]) -> Sheet:
    """Lay out the models of one table, a line for each layer.

    Args:
        found: models of one table.
    """
    lines, last = [], None
    for one in found:
        for layer in one.layers:
            lines.append(Line(cells=_cells(one, layer), starts_group=last not in (None, one.key)))
            last = one.key
    request = found[0].request
    small = "" if request.recipe.scale == "paper" else " Trained at small scale."
    return Sheet(
        title=f"Attention maps of {title_of(request)}",
        columns=COLUMNS,
        lines=tuple(lines),
        words=("layer",),
        caption="Of one row of test data, seed 0, mean over heads. Keys: how many a query spreads "
        "its weights over, e to the entropy. Row sums: the farthest from 1. Of S W_A: the mean "
        "sum of the rows of the effective map, and the share taken with a negative sign." + small,
    )


def maps_csv(found: list[Maps]) -> str:
    """Write one line for each record."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, (*FIELDS, *MIXED), lineterminator="\n")
    writer.writeheader()
    for record in maps_records(found):
        writer.writerow({key: "" if value is None else value for key, value in record.items()})
    return stream.getvalue()


def keys_of(weights: Tensor) -> float:
    """Return over how many keys rows [T, S] of weights are spread.

    Example:
        >>> round(keys_of(torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]])), 3)
        3.0
    """
    return float(torch.special.entr(weights.double()).sum(-1).exp().mean())


def _numbers(layer: LayerMap, head: int) -> dict[str, float | None]:
    own = layer.weights[head].double()
    sums = own.sum(-1)
    numbers: dict[str, float | None] = {
        "keys": keys_of(own),
        "row_sum": float(sums[(sums - 1).abs().argmax()]),
        **dict.fromkeys(MIXED),
    }
    if layer.effective is not None:
        taken = layer.effective[head].double()
        numbers["effective_sum"] = float(taken.sum(-1).mean())
        numbers["negative"] = float(taken.clamp(max=0).sum().abs() / taken.abs().sum())
    return numbers


def _cells(one: Maps, layer: LayerMap) -> tuple[str, ...]:
    heads = [_numbers(layer, head) for head in range(len(layer.weights))]
    mean = {
        name: None if heads[0][name] is None else sum(own[name] for own in heads) / len(heads)
        for name in ("keys", *MIXED)
    }
    farthest = max((own["row_sum"] for own in heads), key=lambda total: abs(total - 1))
    mixed = ["" if mean[name] is None else f"{mean[name]:.2f}" for name in MIXED]
    return (
        one.key[0],
        str(one.key[1]),
        layer.layer,
        f"{mean['keys']:.2f} of {layer.weights.shape[-1]}",
        f"{farthest:.6f}",
        *mixed,
    )
