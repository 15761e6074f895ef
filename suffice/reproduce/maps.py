"""What trained models look at: the attention maps of one row of test data.

Letters: H query heads, T queries, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from suffice.checkpoint import load_model_into
from suffice.data import Dataset
from suffice.data.dataset import Split
from suffice.errors import CheckpointError
from suffice.layers import watched
from suffice.measure.plan import FILE, read_kept
from suffice.measure.storage import cell_path
from suffice.measure.training import Place
from suffice.recipes import SCALES
from suffice.reproduce.finished import Key
from suffice.reproduce.published import same_training
from suffice.reproduce.request import Request, ask
from suffice.reproduce.table import Table
from suffice.train.evaluate import evaluating
from suffice.train.reading import Reading


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerMap:
    """What one layer of a model looked at.

    Args:
        layer: name of it in the model.
        weights: [H, T, S] of the kernel, rows sum to 1.
        effective: [H, T, S], the weights times W_A; None where nothing mixes the values.
    """

    layer: str
    weights: Tensor
    effective: Tensor | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Maps:
    """What one trained model looked at in a row of test data.

    Args:
        request: the table whose cell the model is.
        key: mechanism, heads, seed.
        layers: in their order.
        row: inputs of the row, pixels [C, H, W] or tokens [T].
        words: of the tokens, where they are words.
        label: the right answer.
        answer: the model's.
    """

    request: Request
    key: Key
    layers: tuple[LayerMap, ...]
    row: Tensor
    words: tuple[str, ...] | None
    label: int
    answer: int


def ask_maps(
    part: Table,
    *,
    scale: str | None,
    heads: tuple[int, ...] | None,
    out: Path | None,
    data: str | None = None,
) -> Request:
    """Return the cells whose models are looked into: one for each mechanism.

    Args:
        part: the table they belong to.
        scale: of its recipe; None = the first that some weights are there of, else small.
        heads: None = the table's most.
        out: working folder instead of the usual.
        data: the user's own files instead of the task's.

    Raises:
        ConfigError: as `ask`.
        DataError: as `ask`.
    """
    words: dict[str, Any] = {
        "heads": heads or (max(part.heads),),
        "seeds": 1,
        "out": out,
        "data": data,
    }
    if scale is None and out is not None and (out / FILE).exists():
        scale = str(read_kept(out).recipe.get("scale"))
    scales = SCALES if scale is None and out is None else (scale or SCALES[-1],)
    found = [ask(part, scale=one, **words) for one in scales]
    return next((one for one in found if len(lacking(one)) < len(one.plan.cells)), found[-1])


def lacking(request: Request) -> list[Key]:
    """Return the cells of a request without weights in its folder."""
    return [key for key in request.plan.cells if not weights_of(request, key).exists()]


def weights_of(request: Request, key: Key) -> Path:
    """Return where the weights of a cell lie, there or not."""
    return Place(request.folder, cell_path(request.folder, *key).stem).model


def look(request: Request, key: Key, dataset: Dataset) -> Maps:
    """Return what a trained model looks at in the first row of test data without padding.

    Args:
        request: the table it belongs to.
        key: mechanism, heads, seed.
        dataset: of the recipe's task.

    Raises:
        CheckpointError: if the weights cannot be read, or were trained with other settings.
    """
    path = weights_of(request, key)
    with torch.random.fork_rng():
        model = request.recipe.build(*key[:2])
    config = load_model_into(path, model)
    if not same_training(config.get("recipe", {}), request.recipe):
        raise CheckpointError(
            f"{path} was trained with other settings than recipe {request.recipe.name}, scale "
            f"{request.recipe.scale}; delete it, or name another folder with --out."
        )
    split = _first(dataset.test)
    reading = Reading.of(split)
    prepared = reading._replace(inputs=dataset.prepare(reading.inputs))
    with evaluating(model), torch.inference_mode(), watched(model) as maps:
        logits = prepared.answered(model)
    words = dataset.vocabulary
    return Maps(
        request=request,
        key=key,
        layers=tuple(
            LayerMap(
                layer=one.layer,
                weights=one.weights[0],
                effective=None if one.effective is one.weights else one.effective[0],
            )
            for one in maps
        ),
        row=split.inputs[0],
        words=None if words is None else tuple(words[i] for i in split.inputs[0].tolist()),
        label=int(split.labels[0]),
        answer=int(logits[0].argmax()),
    )


def _first(split: Split) -> Split:
    """Return the first row whose tokens are all real, the first of all if none is."""
    row = 0
    if split.valid is not None:
        row = int(split.valid.all(dim=1).long().argmax())
    return split.take(torch.tensor([row]))
