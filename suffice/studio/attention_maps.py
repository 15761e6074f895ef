"""The attention maps of a checkpoint, computed for one input and sent one head at a time."""

from __future__ import annotations

import base64
import binascii
import json
import re
import threading
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.data.dataset import ImagePreparation
from suffice.data.images import decode
from suffice.errors import CheckpointError, ConfigError, DataError
from suffice.layers import Attention, AttentionMap, watched
from suffice.loading import (
    ImageClassifier,
    LanguageModel,
    TextClassifier,
    TextTranslator,
    load,
)
from suffice.models.folder import CONFIG, WEIGHTS
from suffice.spec import AttentionSpec
from suffice.studio.folders import below, walk
from suffice.text import Tokenizer, Words
from suffice.utils.records import is_whole
from suffice.view import brief

Shown = TextClassifier | ImageClassifier | LanguageModel
Version = tuple[str, tuple[object, ...]]

MAX_CHECKPOINTS = 300  # in one list
CELLS = "models"  # folder in which `suffice compare` saves models
MAX_TOKENS = 256  # larger maps are refused
LONGEST_LABEL = 24  # characters of a token
THUMB = 24  # cells on a side of a thumbnail
CACHE_SIZE = 3  # models, and the same number of inputs with their maps
MAPS = ("weights", "effective")
MEAN = -1  # the number of a head that stands for the mean of all


class MapServer:
    """Answers requests for the maps of checkpoints in a folder; caches the latest models and maps.

    A request that is malformed, or names what does not exist, raises `DataError` or `ConfigError`.
    """

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self._load = lru_cache(CACHE_SIZE)(lambda version: load_model(Path(version[0])))
        self._maps_of = lru_cache(CACHE_SIZE)(self._compute_maps)
        self._lock = threading.Lock()

    def checkpoints(self, request: Any) -> dict[str, Any]:  # noqa: ARG002 - it has no fields
        """List the checkpoints of the folder."""
        return {"chosen": self.root is not None, "checkpoints": list_checkpoints(self.root)}

    def checkpoint(self, request: Any) -> dict[str, Any]:
        """Describe the input and the layers of a checkpoint."""
        with self._lock:
            loaded = self._load(self._version(_fields(request)))
        config = loaded.network.config
        return {
            "reads": _reads(loaded),
            "task": loaded.facts.get("task"),
            "length": config.length,
            "image_size": getattr(config, "image_size", None),
            "layers": [
                {"name": name, "description": _describe(module.spec)}
                for name, module in loaded.network.named_modules()
                if isinstance(module, Attention)
            ],
        }

    def overview(self, request: Any) -> dict[str, Any]:
        """Return thumbnails of every layer and head, with labels of the positions."""
        model_input, maps = self._compute(_fields(request))
        return {
            "labels": model_input.labels,
            "grid": model_input.grid,
            "extra": model_input.extra,
            "layers": [
                {
                    "name": layer.layer,
                    "mixed": layer.effective is not layer.weights,
                    "heads": layer.weights.shape[1],
                    "thumbs": {name: _thumbs(getattr(layer, name)[0]) for name in MAPS},
                }
                for layer in maps
            ],
        }

    def head(self, request: Any) -> dict[str, Any]:
        """Return every number of the map of one head, or of the mean of all heads (-1)."""
        request = _fields(request)
        _, maps = self._compute(request)
        name = request.get("which", MAPS[0])
        if name not in MAPS:
            raise DataError(f"{name!r:.40} is not a map; give weights or effective.")
        heads = getattr(_item("layer", request.get("layer"), maps), name)[0]
        number = request.get("head")
        numbers = heads.mean(dim=0) if number == MEAN else _item("head", number, heads)
        return {
            "rows": numbers.shape[0],
            "columns": numbers.shape[1],
            "values": _base64(numbers.float()),
            "sums": numbers.double().sum(dim=1).tolist(),
            "low": float(numbers.min()),
            "high": float(numbers.max()),
        }

    def _version(self, request: dict[str, Any]) -> Version:
        if self.root is None:
            raise DataError("no folder was chosen; start again with --checkpoints FOLDER.")
        return _version_of(below(self.root, request.get("checkpoint")))

    def _compute(self, request: dict[str, Any]) -> tuple[ModelInput, list[AttentionMap]]:
        fields = {name: request[name] for name in ("text", "image", "scaling") if name in request}
        with self._lock:
            return self._maps_of(self._version(request), json.dumps(fields))

    def _compute_maps(self, version: Version, fields: str) -> tuple[ModelInput, list[AttentionMap]]:
        loaded = self._load(version)
        model_input = read_input(loaded, json.loads(fields))
        with torch.inference_mode(), watched(loaded.network) as maps:
            loaded.network(model_input.inputs)
        for layer in maps:
            if not torch.isfinite(layer.effective).all():
                raise DataError(f"{layer.layer} has NaN in its map; the weights are not finite.")
        return model_input, maps


def _version_of(path: Path) -> Version:
    """Return the path, and what changes when the files of a checkpoint do."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    stats = ((file.name, file.stat()) for file in files if file.is_file())
    return str(path), tuple((name, s.st_mtime_ns, s.st_size, s.st_ino) for name, s in stats)


def _fields(request: Any) -> dict[str, Any]:
    if not isinstance(request, dict):
        raise ConfigError("a request for maps is an object with a checkpoint and an input.")
    return request


def _item(kind: str, number: object, items: Any) -> Any:
    if not is_whole(number, least=0) or number >= len(items):  # type: ignore[operator]
        raise DataError(f"there is no {kind} {number!r:.40}; give 0 to {len(items) - 1}.")
    return items[number]


def _describe(spec: AttentionSpec) -> str:
    parts = [brief(spec.encoder), brief(spec.pattern), brief(spec.kernel)]
    parts += [brief(spec.mixing)] if "mixing" in spec.beyond_pairs else []
    return f"{', '.join(parts)}; {spec.num_heads} heads, {spec.kv_heads} for keys and values"


def _thumbs(maps: Tensor) -> list[dict[str, Any]]:
    """Return maps [H, T, R] as thumbnails of one byte a cell, 255 = the head's largest."""
    thumbs = []
    for head in maps.float().abs():
        rows, columns = (min(THUMB, size) for size in head.shape)
        small = F.adaptive_max_pool2d(head[None, None], (rows, columns))[0, 0]
        small = (255 * small / small.max().clamp(min=1e-12)).round().to(torch.uint8)
        thumbs.append({"rows": rows, "columns": columns, "values": _base64(small)})
    return thumbs


def _base64(numbers: Tensor) -> str:
    return base64.b64encode(numbers.contiguous().numpy().tobytes()).decode()


def list_checkpoints(root: Path | None) -> list[str]:
    """List the folders of models, models of comparisons and .bin files below a folder.

    Links are not followed.
    """
    if root is None:
        return []
    inside, names = root.resolve(), []
    for path, folders, files in walk(inside):
        if CONFIG in files and any(name.endswith(".safetensors") for name in files):
            names.append(path.as_posix())
            folders.clear()
        else:
            suffix = ".safetensors" if CELLS in (path.name, inside.name) else ".bin"
            models = [name for name in sorted(files) if name.endswith(suffix) and name != WEIGHTS]
            names += [(path / name).as_posix() for name in models if not name.startswith("tok")]
        if len(names) >= MAX_CHECKPOINTS:
            break
    return names[:MAX_CHECKPOINTS]


def load_model(path: Path) -> Shown:
    """Return the model at a path, whatever command left it; nothing is unpickled or executed."""
    loaded = load(path)
    if isinstance(loaded, TextTranslator):
        raise CheckpointError(f"{path.name} holds a translator, whose maps are not shown.")
    return loaded


def _reads(model: Shown) -> str:
    """Return the kind of input: "image", or "text", or "ids" where no tokenizer is known."""
    if isinstance(model, ImageClassifier):
        return "image"
    return "ids" if model.tokenizer is None else "text"


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelInput:
    """An input, and labels of its positions."""

    inputs: Tensor  # tokens [1, T] or pixels [1, C, S, S]
    labels: tuple[str, ...]
    grid: int = 0  # patches on a side of the picture; 0 = a text
    extra: int = 0  # positions before the patches: a class token


def read_input(loaded: Shown, request: dict[str, Any]) -> ModelInput:
    """Return the input in a request: {"text": str} or {"image": base64, "scaling": str}."""
    if isinstance(loaded, ImageClassifier):
        return _read_image(loaded, request)
    text, tokenizer = request.get("text"), loaded.tokenizer
    if not isinstance(text, str) or not text.strip():
        raise DataError("give a text to read.")
    ids = _ids(text, loaded)
    size = loaded.network.config.vocabulary_size
    if any(not 0 <= token < size for token in ids):
        raise DataError(f"a number of a token is from 0 to {size - 1:,} here.")
    longest = min(MAX_TOKENS, loaded.network.config.length)
    if not 1 <= len(ids) <= longest:
        raise DataError(f"{len(ids):,} tokens cannot be shown; give 1 to {longest}.")
    labels = [_label(token, tokenizer) for token in ids]
    short = tuple(label[:LONGEST_LABEL].replace("\n", "⏎") for label in labels)
    return ModelInput(inputs=torch.tensor([ids]), labels=short)


def _ids(text: str, loaded: TextClassifier | LanguageModel) -> list[int]:
    """Return the ids of a text as the model was trained on them; padding only where it is read."""
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        return _parse_ids(text)
    if isinstance(tokenizer, Words):
        ids, valid = tokenizer.rows([text])
        padded = getattr(loaded.network.config, "reads_padding", False)
        return (ids[0] if padded else ids[0][valid[0]]).tolist()
    begin = [] if tokenizer.begin is None else [tokenizer.begin]
    return [*begin, *tokenizer.encode(text)]


def _label(token: int, tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return str(token)
    if isinstance(tokenizer, Words):
        return tokenizer.words[token]
    return tokenizer.decode([token]) or f"<{token}>"


def _parse_ids(text: str) -> list[int]:
    words = text.replace(",", " ").split()
    if not all(re.fullmatch(r"\d{1,9}", word) for word in words):
        raise DataError("this model has no tokenizer: give numbers of tokens, such as 3 1.")
    return list(map(int, words))


def _read_image(loaded: ImageClassifier, request: dict[str, Any]) -> ModelInput:
    config, image = loaded.network.config, request.get("image")
    if not isinstance(image, str) or not image:
        raise DataError("give a picture, JPEG or PNG.")
    try:
        content = base64.b64decode(image, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError("the picture was not transferred completely; give it again.") from error
    decoded = decode(content, config.image_size, "the picture")
    pixels = torch.from_numpy(decoded).float() / 255.0
    if config.channels == 1:
        pixels = pixels.mean(dim=0, keepdim=True)
    elif config.channels != len(pixels):
        raise DataError(f"the model reads {config.channels} channels; a picture has 1 or 3.")
    side = config.image_size // config.patch_size
    extra = len(config.tokens)
    if side * side + extra > MAX_TOKENS:
        raise DataError(f"{side * side} patches cannot be shown; at most {MAX_TOKENS} are.")
    labels = [f"row {i}, column {j}" for i in range(side) for j in range(side)]
    return ModelInput(
        inputs=_scale(pixels, request.get("scaling"), loaded.preparation)[None],
        labels=(*["class token"] * extra, *labels),
        grid=side,
        extra=extra,
    )


def _scale(pixels: Tensor, scaling: object, preparation: ImagePreparation | None) -> Tensor:
    """Scale pixels of 0 to 1.

    By default as in the training where the folder says how, else by the picture's own mean and
    deviation ("own"); or to -1 to 1 ("plain").
    """
    if scaling is None:
        scaling = "own" if preparation is None else "trained"
    if scaling == "trained" and preparation is not None:
        return preparation(pixels[None] * preparation.white)[0]
    if scaling == "plain":
        return pixels * 2.0 - 1.0
    if scaling != "own":
        raise DataError(f"scaling {scaling!r:.40} is not known; give trained, own or plain.")
    return (pixels - pixels.mean()) / pixels.std(correction=0).clamp(min=1e-6)
