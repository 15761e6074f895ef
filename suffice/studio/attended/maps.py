"""The maps of every layer and head, asked for one layer at a time.

Letters: H heads, T queries, R keys that are read, S positions.
"""

from __future__ import annotations

import base64
import json
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.errors import ConfigError, DataError
from suffice.layers import Attention, AttentionMap, watched
from suffice.studio.attended.found import checkpoints
from suffice.studio.attended.given import Given, given
from suffice.studio.attended.model import Opened, opened
from suffice.studio.folders import below
from suffice.view import brief

THUMB = 24  # cells on a side of a small picture
KEPT = 3  # models, and inputs with their maps
WHICH = ("weights", "effective")


class Maps:
    """Answers what a checkpoint of a folder looks at; the latest ones are kept.

    Args:
        root: the folder that was chosen; None = none was.
    """

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self._models: OrderedDict[tuple[str, int], Opened] = OrderedDict()
        self._seen: OrderedDict[str, tuple[Given, list[AttentionMap]]] = OrderedDict()
        self._lock = threading.Lock()

    def listed(self, request: Any) -> dict[str, Any]:  # noqa: ARG002 - nothing is asked
        """List the checkpoints of the folder."""
        return {"chosen": self.root is not None, "checkpoints": checkpoints(self.root)}

    def about(self, request: Any) -> dict[str, Any]:
        """Tell what a checkpoint reads and is made of.

        Raises:
            DataError: for a request of another form, or a checkpoint outside the folder.
        """
        with self._lock:
            model = self._open(_asked(request))
        config = model.model.config
        layers = _layers(model)
        return {
            "reads": model.reads,
            "task": model.task,
            "length": config.length,
            "image_size": getattr(config, "image_size", None),
            "layers": [{"name": name, "told": _told(layer)} for name, layer in layers.items()],
        }

    def overview(self, request: Any) -> dict[str, Any]:
        """Return small pictures of every layer and head, with what the positions are.

        Raises:
            DataError: for a request of another form, or an input that cannot be read.
        """
        held, found = self._watch(_asked(request))
        return {
            "labels": held.labels,
            "grid": held.grid,
            "extra": held.extra,
            "layers": [
                {
                    "name": one.layer,
                    "mixed": one.effective is not one.weights,
                    "heads": one.weights.shape[1],
                    "thumbs": {name: _thumbs(_of(one, name)) for name in WHICH},
                }
                for one in found
            ],
        }

    def layer(self, request: Any) -> dict[str, Any]:
        """Return the map of one head: every number of it.

        Raises:
            DataError: for a request of another form, or a layer or head that is not there.
        """
        asked = _asked(request)
        _, found = self._watch(asked)
        layer, head, name = asked.get("layer"), asked.get("head"), asked.get("which", WHICH[0])
        if name not in WHICH:
            raise DataError(f"{name!r:.40} is no map; give weights or effective.")
        one = found[_place("layer", layer, len(found))]
        numbers = _of(one, name)[0, _place("head", head, one.weights.shape[1])]
        return {
            "rows": numbers.shape[0],
            "columns": numbers.shape[1],
            "values": _packed(numbers),
            "sums": numbers.double().sum(dim=1).tolist(),
            "low": float(numbers.min()),
            "high": float(numbers.max()),
        }

    def _open(self, request: dict[str, Any]) -> Opened:
        """Return a model, from memory if its file is as it was."""
        if self.root is None:
            raise DataError("no folder was chosen; start again with --checkpoints FOLDER.")
        path = below(self.root, request.get("checkpoint"))
        key = (str(path), path.stat().st_mtime_ns)
        if key not in self._models:
            self._models[key] = opened(path)
        self._models.move_to_end(key)
        while len(self._models) > KEPT:
            self._models.popitem(last=False)
        return self._models[key]

    def _watch(self, request: dict[str, Any]) -> tuple[Given, list[AttentionMap]]:
        """Return an input and the maps of it, from memory if they were asked before."""
        told = {name: request.get(name) for name in ("checkpoint", "text", "image", "scaling")}
        key = json.dumps(told)
        with self._lock:
            if key not in self._seen:
                model = self._open(request)
                self._seen[key] = _looked(
                    model, given(model, request | {"scaling": told["scaling"] or "own"})
                )
            self._seen.move_to_end(key)
            while len(self._seen) > KEPT:
                self._seen.popitem(last=False)
            return self._seen[key]


def _looked(model: Opened, held: Given) -> tuple[Given, list[AttentionMap]]:
    with torch.inference_mode(), watched(model.model) as found:
        model.model(held.inputs)
    for one in found:
        if not torch.isfinite(one.effective).all():
            raise DataError(f"{one.layer} looks with NaN; the weights are not finite.")
    return held, found


def _asked(request: Any) -> dict[str, Any]:
    if not isinstance(request, dict):
        raise ConfigError("a map is asked for with a checkpoint and what it reads.")
    return request


def _place(what: str, number: object, there: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < there:
        raise DataError(f"{what} {number!r:.40} is not there; give 0 to {there - 1}.")
    return number


def _layers(model: Opened) -> dict[str, Attention]:
    modules = model.model.named_modules()
    return {name: module for name, module in modules if isinstance(module, Attention)}


def _told(layer: Attention) -> str:
    spec = layer.spec
    parts = [brief(spec.projections), brief(spec.pattern), brief(spec.kernel)]
    parts += [brief(spec.mixing)] if spec.mixing.mixes else []
    return f"{', '.join(parts)}; {spec.num_heads} heads, {spec.kv_heads} for keys and values"


def _of(one: AttentionMap, name: str) -> Tensor:
    return one.weights if name == "weights" else one.effective


def _thumbs(numbers: Tensor) -> list[dict[str, Any]]:
    """Return [1, H, T, S] as small pictures of one byte a cell, 255 = the largest of the head."""
    found = []
    for head in numbers[0].float().abs():
        size = (min(THUMB, head.shape[0]), min(THUMB, head.shape[1]))
        small = F.adaptive_max_pool2d(head[None, None], size)[0, 0]
        small = (255 * small / small.max().clamp(min=1e-12)).round().to(torch.uint8)
        found.append({"rows": size[0], "columns": size[1], "values": _packed(small)})
    return found


def _packed(numbers: Tensor) -> str:
    """Return a tensor's bytes, little endian, as base64."""
    plain = numbers.contiguous()
    plain = plain.float() if plain.is_floating_point() else plain
    return base64.b64encode(plain.numpy().tobytes()).decode()
