"""The attention maps of a checkpoint, computed for one input and sent one head at a time."""

from __future__ import annotations

import base64
import binascii
import json
import re
import threading
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.data.dataset import ImagePreparation
from suffice.data.images import decode
from suffice.errors import CheckpointError, ConfigError, DataError
from suffice.generate import generate
from suffice.layers import Attention, AttentionMap, watched
from suffice.loading import (
    ImageClassifier,
    LanguageModel,
    TextClassifier,
    TextTranslator,
    load,
)
from suffice.models.architectures.hugging_face import read_config
from suffice.models.folder import CONFIG, WEIGHTS, is_ours
from suffice.spec import AttentionSpec
from suffice.text import Words
from suffice.text.tokenizer import check_text
from suffice.utils.records import is_whole
from suffice.view import brief
from suffice_studio.folders import below, walk
from suffice_studio.stock import StockModel, open_stock

Shown = TextClassifier | ImageClassifier | LanguageModel | StockModel
Version = tuple[str, tuple[object, ...]]

MAX_CHECKPOINTS = 300  # in one list
CELLS = "models"  # folder in which `suffice compare` saves models
MAX_TOKENS = 256  # or patches; larger maps are refused
LONGEST_LABEL = 24  # characters of a token
THUMB = 24  # cells on a side of a thumbnail
LEAST_SHADED = 1e-3  # a map or a difference whose largest number is less stays pale
CACHE_SIZE = 3  # models, and the same number of inputs with their maps
MAPS = ("weights", "effective")
INPUT = ("text", "image", "scaling", "new_tokens")  # fields of a request
MEAN = -1  # the number of a head that stands for the mean of all


class MapServer:
    """Answers requests for the maps of checkpoints in a folder; caches the latest models and maps.

    A request that is malformed, or names what does not exist, raises `DataError` or `ConfigError`.
    """

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self._load = lru_cache(CACHE_SIZE)(lambda version: load_model(Path(version[0])))
        self._input_of = lru_cache(CACHE_SIZE)(
            lambda version, fields: read_input(self._load(version), json.loads(fields))
        )
        self._maps_of = lru_cache(CACHE_SIZE)(self._compute_maps)
        self._lock = threading.Lock()

    def checkpoints(self, request: Any) -> dict[str, Any]:  # noqa: ARG002 - it has no fields
        """List the checkpoints of the folder."""
        return {"chosen": self.root is not None, "checkpoints": list_checkpoints(self.root)}

    def checkpoint(self, request: Any) -> dict[str, Any]:
        """Describe the input and the layers of a checkpoint."""
        with self._lock:
            loaded: Any = self._load(self._version(_fields(request)))
        return {
            "reads": _reads(loaded),
            "length": loaded.network.config.length,
            "image_size": getattr(loaded.network.config, "image_size", None),
            "generates": isinstance(loaded, LanguageModel)
            or getattr(loaded.network, "can_generate", bool)(),
            "trained": getattr(loaded, "preparation", None) is not None,
            "layers": _layers(loaded),
        }

    def overview(self, request: Any) -> dict[str, Any]:
        """Return thumbnails of every layer and head, with labels of the positions.

        With "against", another checkpoint, they are of the differences, and "variation" is the mean
        total variation distance of the rows of each head.
        """
        model_input, (maps, *compared) = self._compute(_fields(request))
        kinds = MAPS[1:] if compared else MAPS[: 1 + any(layer.mixed for layer in maps)]
        extra = maps[0].weights.shape[2] - len(model_input.labels)
        names = ("class token", *(f"token {number}" for number in range(2, extra + 1)))[:extra]
        return {
            "labels": (*names, *model_input.labels),
            "grid": model_input.grid,
            "extra": extra,
            "generated": model_input.generated,
            "maps": kinds,
            "layers": [
                {
                    "name": layer.layer,
                    "thumbs": {name: _thumbs(getattr(layer, name)[0]) for name in kinds},
                    "variation": compared
                    and (layer.effective[0].abs().sum(dim=2) / 2).mean(dim=1).tolist(),
                }
                for layer in (compared[-1] if compared else maps)
            ],
        }

    def head(self, request: Any) -> dict[str, Any]:
        """Return every number of the map of one head, or of the mean of all heads (-1).

        With "against" also those of the other checkpoint and of the difference.
        """
        request = _fields(request)
        _, layers = self._compute(request)
        name, number = request.get("which", MAPS[0]), request.get("head")
        if name not in (legal := MAPS[1:] if len(layers) > 1 else MAPS):
            raise DataError(f"{name!r:.40} is not a map here; give {' or '.join(legal)}.")
        heads = [getattr(_item("layer", request.get("layer"), each), name)[0] for each in layers]
        maps = [h.mean(dim=0) if number == MEAN else _item("head", number, h) for h in heads]
        first, *compared = map(_numbers, maps)
        return first | dict(zip(("against", "difference"), compared, strict=False))

    def _version(self, request: dict[str, Any], field: str = "checkpoint") -> Version:
        if self.root is None:
            raise DataError("no folder was chosen; start again with --checkpoints FOLDER.")
        return _version_of(below(self.root, request.get(field)))

    def _compute(self, request: dict[str, Any]) -> tuple[ModelInput, list[list[AttentionMap]]]:
        """Return an input and the maps of a checkpoint on it.

        If another checkpoint is named, its maps on the same input and the differences follow.
        """
        fields = json.dumps({name: request[name] for name in INPUT if name in request})
        with self._lock:
            version = self._version(request)
            layers = [self._maps_of(version, version, fields)]
            if request.get("against"):
                layers.append(self._maps_of(self._version(request, "against"), version, fields))
                layers.append(_differences(*layers))
            return self._input_of(version, fields), layers

    def _compute_maps(self, version: Version, reader: Version, fields: str) -> list[AttentionMap]:
        model_input, loaded = self._input_of(reader, fields), self._load(version)
        _check_reads(model_input, loaded.network.config, self._load(reader).network.config)
        with torch.inference_mode(), watched(loaded.network) as maps:
            loaded.network(model_input.inputs)
        if not maps:
            raise DataError("no layer of this model computes attention weights.")
        for layer in maps:
            if not torch.isfinite(layer.effective).all():
                raise DataError(f"{layer.layer} has NaN in its map; the weights are not finite.")
            if len(layer.weights) != 1 or layer.weights.shape[2] < len(model_input.labels):
                raise DataError(f"{layer.layer} attends within parts of its input; it has no map.")
            if model_input.generated and layer.effective.triu(1).any():
                raise DataError(f"{layer.layer} looks ahead, so it has other maps as it generates.")
        return maps


def _version_of(path: Path) -> Version:
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


def _numbers(weights: Tensor) -> dict[str, Any]:
    return {
        "rows": weights.shape[0],
        "columns": weights.shape[1],
        "values": _base64(weights.float()),
        "sums": weights.double().sum(dim=1).tolist(),
        "low": float(weights.min()),
        "high": float(weights.max()),
    }


def _differences(maps: list[AttentionMap], others: list[AttentionMap]) -> list[AttentionMap]:
    """Return maps whose `effective` is what queries take of each value, less what others take."""
    shapes = [[tuple(layer.effective.shape[1:]) for layer in each] for each in (maps, others)]
    if shapes[0] != shapes[1]:
        raise DataError(f"maps {shapes[0]} and {shapes[1]} differ; compare a conversion.")
    return [
        replace(layer, effective=layer.effective.double() - other.effective.double())
        for layer, other in zip(maps, others, strict=True)
    ]


def _layers(loaded: Any) -> list[str]:
    if isinstance(loaded, StockModel):
        depth = loaded.network.config.depth or 1
        return [f"{type(loaded.network).__name__} of transformers"] * depth
    return [_describe(m.spec) for m in loaded.network.modules() if isinstance(m, Attention)]


def _describe(spec: AttentionSpec) -> str:
    parts = [brief(spec.encoder), brief(spec.pattern), brief(spec.kernel)]
    parts += [brief(spec.mixing)] if "mixing" in spec.beyond_pairs else []
    if spec.lane == "recurrence":
        parts.append("no softmax: what each output takes of each value, rows need not sum to 1")
    return f"{', '.join(parts)}; {spec.num_heads} heads, {spec.kv_heads} for keys and values"


def _thumbs(maps: Tensor) -> list[dict[str, Any]]:
    """Return maps [H, T, R] as thumbnails of one byte a cell, 255 = the head's largest."""
    thumbs = []
    for head in maps.float().abs():
        rows, columns = (min(THUMB, size) for size in head.shape)
        small = F.adaptive_max_pool2d(head[None, None], (rows, columns))[0, 0]
        small = (255 * small / small.max().clamp(min=LEAST_SHADED)).round().to(torch.uint8)
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
    """Return the model at a path, whatever command left it; nothing is unpickled or executed.

    A model of transformers is opened by transformers where it is installed.
    """
    described = read_config(path) if (path / CONFIG).is_file() else {}
    if "model_type" in described and not is_ours(described) and find_spec("transformers"):
        return open_stock(path, described)
    loaded = load(path)
    if isinstance(loaded, TextTranslator):
        raise CheckpointError(f"{path.name} holds a translator, whose maps are not shown.")
    return loaded


def _reads(model: Any) -> str:
    if getattr(model.network.config, "image_size", None) is not None:
        return "image"
    return "ids" if model.tokenizer is None else "text"


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelInput:
    """An input, and labels of its positions."""

    inputs: Tensor  # tokens [1, T] or pixels [1, C, S, S]
    labels: tuple[str, ...]  # of tokens or patches
    generated: int = 0  # tokens at the end that the model generated
    grid: int = 0  # patches on a side of the picture; 0 = a text


def read_input(loaded: Any, request: dict[str, Any]) -> ModelInput:
    """Return the input in a request: {"text": str} or {"image": base64, "scaling": str}.

    With "new_tokens" the model continues the text by at most that number, the most probable ones.
    """
    if _reads(loaded) == "image":
        return _read_image(loaded, request)
    text, tokenizer = request.get("text"), loaded.tokenizer
    if not isinstance(text, str) or not text.strip():
        raise DataError("give a text to read.")
    ids = _ids(text, loaded)
    size = loaded.network.config.vocabulary_size
    longest = min(MAX_TOKENS, loaded.network.config.length)
    if any(not 0 <= token < size for token in ids):
        raise DataError(f"a number of a token is from 0 to {size - 1:,} here.")
    count, prompt = request.get("new_tokens", 0), len(ids)
    if not is_whole(count, least=0):
        raise DataError(f"new_tokens is {count!r:.40}; give 0 or more.")
    if not 1 <= prompt <= longest - count:
        raise DataError(f"{prompt + count:,} tokens cannot be shown; give 1 to {longest}.")
    ids = _continue(loaded, ids, count) if count else ids
    labels = map(str, ids) if tokenizer is None else _labels(ids, tokenizer)
    short = tuple(label[:LONGEST_LABEL].replace("\n", "⏎") for label in labels)
    return ModelInput(inputs=torch.tensor([ids]), labels=short, generated=len(ids) - prompt)


def _continue(loaded: Any, ids: list[int], count: int) -> list[int]:
    if isinstance(loaded, StockModel) and loaded.network.can_generate():
        return loaded.generate(ids, count)
    if not isinstance(loaded, LanguageModel):
        raise DataError(f"{type(loaded.network).__name__} continues no text; give 0 new_tokens.")
    end = getattr(loaded.tokenizer, "end", None)
    stop = [] if end is None else [end]
    return generate(loaded.network, [ids], max_new_tokens=count, stop=stop).row(0)


def _check_reads(model_input: ModelInput, sizes: Any, read: Any) -> None:
    names = ("image_size", "channels") if model_input.grid else ("vocabulary_size",)
    first, second = ([getattr(config, name, None) for name in names] for config in (read, sizes))
    if first != second:
        raise DataError(f"{', '.join(names)} {first} and {second} differ; compare a conversion.")
    if not model_input.grid and len(model_input.labels) > sizes.length:
        raise DataError(f"the other model reads {sizes.length} tokens; give fewer.")


def _ids(text: str, loaded: Any) -> list[int]:
    """Return the ids of a text as the model was trained on them; padding only where it is read."""
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        return _parse_ids(text)
    check_text(text)
    if isinstance(loaded, StockModel):
        return tokenizer(text)["input_ids"]
    if isinstance(tokenizer, Words):
        ids, valid = tokenizer.rows([text])
        padded = getattr(loaded.network.config, "reads_padding", False)
        return (ids[0] if padded else ids[0][valid[0]]).tolist()
    begin = [] if tokenizer.begin is None else [tokenizer.begin]
    return [*begin, *tokenizer.encode(text)]


def _labels(ids: list[int], tokenizer: Any) -> list[str]:
    if isinstance(tokenizer, Words):
        return [tokenizer.words[token] for token in ids]
    texts = [tokenizer.decode(ids[:end]) for end in range(len(ids) + 1)]
    added = (after[len(before) :] for before, after in pairwise(texts))
    return [text or f"<{token}>" for text, token in zip(added, ids, strict=True)]


def _parse_ids(text: str) -> list[int]:
    words = text.replace(",", " ").split()
    if not all(re.fullmatch(r"\d{1,9}", word) for word in words):
        raise DataError("this model has no tokenizer: give numbers of tokens, such as 3 1.")
    return list(map(int, words))


def _read_image(loaded: Any, request: dict[str, Any]) -> ModelInput:
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
    if side * side > MAX_TOKENS:
        raise DataError(f"{side * side} patches cannot be shown; at most {MAX_TOKENS} are.")
    labels = tuple(f"row {i}, column {j}" for i in range(side) for j in range(side))
    scaled = _scale(pixels, request.get("scaling"), loaded.preparation)
    return ModelInput(inputs=scaled[None], labels=labels, grid=side)


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
