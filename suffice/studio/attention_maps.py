"""The maps of every layer and head, asked for one layer at a time.

Letters: H heads, T queries, R keys that are read, S positions.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import os
import re
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice import checkpoint
from suffice.convert.sources.source import open_source
from suffice.data.images import decode
from suffice.errors import CheckpointError, ConfigError, DataError
from suffice.layers import Attention, AttentionMap, watched
from suffice.models import LM, Classifier, ClassifierConfig, LMConfig, ViT, ViTConfig
from suffice.models.folder import CONFIG, WEIGHTS
from suffice.models.folder import LONGEST as LONGEST_CONFIG
from suffice.spec import AttentionSpec
from suffice.studio.folders import below
from suffice.text import Tokenizer
from suffice.view import brief

DEEPEST, MOST = 4, 300  # folders inside each other; checkpoints in one list
CELLS = "models"  # where `suffice compare` leaves what it trained


def checkpoints(root: Path | None) -> list[str]:
    """List what can be opened, by its name below the folder; links are not followed.

    Folders of a model, files of the models of a comparison, and .bin files of llama2.c.
    """
    if root is None:
        return []
    inside, names = root.resolve(), []
    for here, folders, files in os.walk(inside):
        path = Path(here).relative_to(inside)
        if CONFIG in files and any(name.endswith(".safetensors") for name in files):
            names.append(path.as_posix())
            folders.clear()
        else:
            kind = ".safetensors" if path.name == CELLS or inside.name == CELLS else ".bin"
            own = [name for name in sorted(files) if name.endswith(kind) and name != WEIGHTS]
            names += [(path / name).as_posix() for name in own if not name.startswith("tok")]
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if len(path.parts) >= DEEPEST or len(names) >= MOST:
            folders.clear()
    return names[:MOST]


KINDS = {"text classifier": ClassifierConfig, "image classifier": ViTConfig}
TELLING = {"image_size": ViTConfig, "num_classes": ClassifierConfig, "tied": LMConfig}
"""A field that a configuration of this kind alone has, in the order they are looked for."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Opened:
    """A model to look into.

    Args:
        model: in evaluation, on the CPU.
        tokenizer: of its tokens; None where there is none.
        task: what it was trained for, where that is known.
    """

    model: nn.Module
    tokenizer: Tokenizer | None = None
    task: str | None = None

    @property
    def reads(self) -> str:
        """What it is given: "text", "ids" where no tokenizer is known, or "image"."""
        if isinstance(self.model, ViT):
            return "image"
        return "ids" if self.tokenizer is None else "text"


def opened(path: Path) -> Opened:
    """Return the model at a path; nothing is unpickled or executed.

    Args:
        path: a folder of `suffice train`, `suffice convert` or transformers, a .bin of llama2.c,
            or a .safetensors of `suffice compare`.

    Raises:
        CheckpointError: if there is none, it is damaged, or of a kind that is not shown.
        ConfigError: if it has something that no model here has.
        DataError: if its tokenizer is damaged.
    """
    if path.suffix == ".safetensors":
        return _cell(path)
    kind = _kind(path)
    if kind is not None:
        return _converted(path, kind)
    source = open_source(path)
    if not isinstance(source.model, (LM, Classifier, ViT)):
        raise CheckpointError(f"{path.name} holds a {type(source.model).__name__}; no map of it.")
    return Opened(model=source.model.eval(), tokenizer=source.tokenizer)


def _kind(folder: Path) -> str | None:
    """Return the kind that the config.json of a converted classifier names."""
    data = _config(folder)
    kind = data.get("kind")
    return kind if isinstance(kind, str) and kind in KINDS and "model_type" not in data else None


def _config(folder: Path) -> dict[str, Any]:
    """Return config.json, nothing where there is none that is an object."""
    try:
        with (folder / CONFIG).open("rb") as file:
            data = json.loads(file.read(LONGEST_CONFIG))
    except (OSError, ValueError, RecursionError):
        return {}  # whoever reads it for good says what is wrong
    return data if isinstance(data, dict) else {}


def _converted(folder: Path, kind: str) -> Opened:
    data = _config(folder)
    model = _built(folder, KINDS[kind], data.get("model"), data.get("specs"))
    return Opened(model=_filled(folder / WEIGHTS, model))


def _cell(path: Path) -> Opened:
    """Return a model that `suffice compare` trained."""
    _, told = checkpoint.load(path)
    facts = told.get("config")
    recipe = facts.get("recipe") if isinstance(facts, dict) else None
    sizes = recipe.get("model") if isinstance(recipe, dict) else None
    kinds = [kind for field, kind in TELLING.items() if isinstance(sizes, dict) and field in sizes]
    if not kinds:
        raise CheckpointError(
            f"{path.name} is no classifier, image classifier or language model of suffice compare."
        )
    model = _built(path, kinds[0], sizes, facts.get("specs"))
    return Opened(model=_filled(path, model), task=recipe.get("task"))


def _built(path: Path, kind: Any, sizes: Any, specs: Any) -> nn.Module:
    """Return the model that a description says, with weights still to come."""
    try:
        known = {field.name for field in dataclasses.fields(kind)}
        given = {name: value for name, value in sizes.items() if name in known}
        return kind.from_json(given).build([AttentionSpec.from_json(s) for s in specs])
    except (ConfigError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"{path.name} does not say what model it holds ({error!s:.200})."
        ) from error


def _filled(path: Path, model: nn.Module) -> nn.Module:
    checkpoint.load_model_into(path, model)
    return model.eval()


LONGEST = 256  # tokens; further, maps are larger than a page shows
PLAIN, OWN = "plain", "own"
SHOWN = 24  # characters of a token


@dataclass(frozen=True, kw_only=True, eq=False)
class Given:
    """An input, and how to tell its positions.

    Args:
        inputs: [1, T] tokens or [1, C, S, S] pixels.
        labels: one for each position that attention sees.
        grid: patches on a side of the picture; 0 = a text.
        extra: positions before the patches: a class token.
    """

    inputs: Tensor
    labels: tuple[str, ...]
    grid: int = 0
    extra: int = 0


def given(opened: Opened, request: dict[str, Any]) -> Given:
    """Return what a request gives a model to read.

    Args:
        opened: the model.
        request: {"text": words or numbers of tokens} or {"image": base64, "scaling": how}.

    Raises:
        DataError: if it is absent, too long, or cannot be read.
    """
    if opened.reads == "image":
        return _picture(opened.model, request)
    text = request.get("text")
    if not isinstance(text, str) or not text.strip():
        raise DataError("give a text to read.")
    ids = _ids(text) if opened.tokenizer is None else opened.tokenizer.encode(text)
    if opened.tokenizer is not None and opened.tokenizer.begin is not None:
        ids = [opened.tokenizer.begin, *ids]
    size = opened.model.config.vocabulary_size
    if any(not 0 <= one < size for one in ids):
        raise DataError(f"a number of a token is from 0 to {size - 1:,} here.")
    longest = min(LONGEST, opened.model.config.length)
    if not 1 <= len(ids) <= longest:
        raise DataError(f"{len(ids):,} tokens cannot be shown; give 1 to {longest}.")
    return Given(inputs=torch.tensor([ids]), labels=_labels(opened, ids))


def _ids(text: str) -> list[int]:
    """Return numbers of tokens that somebody typed."""
    words = text.replace(",", " ").split()
    if not all(re.fullmatch(r"\d{1,9}", word) for word in words):
        raise DataError("no tokenizer lies beside this model: give numbers of tokens, such as 3 1.")
    return list(map(int, words))


def _labels(opened: Opened, ids: list[int]) -> tuple[str, ...]:
    if opened.tokenizer is None:
        return tuple(map(str, ids))
    told = [opened.tokenizer.decode([one]) or f"<{one}>" for one in ids]
    return tuple(one[:SHOWN].replace("\n", "⏎") for one in told)


def _picture(model: ViT, request: dict[str, Any]) -> Given:
    config = model.config
    pixels = torch.from_numpy(
        decode(_content(request.get("image")), config.image_size, "the picture")
    )
    pixels = pixels.float() / 255.0
    if config.channels == 1:
        pixels = pixels.mean(dim=0, keepdim=True)
    elif config.channels != len(pixels):
        raise DataError(f"the model reads {config.channels} channels; a picture has 1 or 3.")
    side = config.image_size // config.patch_size
    extra = int(config.pooling == "class_token")
    if side * side + extra > LONGEST:
        raise DataError(f"{side * side} patches cannot be shown; at most {LONGEST} are.")
    labels = [f"row {i}, column {j}" for i in range(side) for j in range(side)]
    return Given(
        inputs=_scaled(pixels, request.get("scaling", OWN))[None],
        labels=(*["class token"] * extra, *labels),
        grid=side,
        extra=extra,
    )


def _scaled(pixels: Tensor, how: object) -> Tensor:
    """Return pixels as models expect them: by the picture's own moments, or from -1 to 1."""
    if how == PLAIN:
        return pixels * 2.0 - 1.0
    if how != OWN:
        raise DataError(f"scaling {how!r:.40} is not known; give own or plain.")
    return (pixels - pixels.mean()) / pixels.std(correction=0).clamp(min=1e-6)


def _content(image: object) -> bytes:
    if not isinstance(image, str) or not image:
        raise DataError("give a picture, JPEG or PNG.")
    try:
        return base64.b64decode(image, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError("the picture did not arrive whole; give it again.") from error


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
    parts = [brief(spec.encoder), brief(spec.pattern), brief(spec.kernel)]
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


__all__ = ["Maps", "Opened", "checkpoints", "opened"]
