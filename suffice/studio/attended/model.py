"""A checkpoint of any kind that is read here, as a model to look into."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from suffice import checkpoint
from suffice.convert.sources.opened import open_source
from suffice.errors import CheckpointError, ConfigError
from suffice.models import LM, Classifier, ClassifierConfig, LMConfig, ViT, ViTConfig, stored
from suffice.models.folder import CONFIG, LONGEST, WEIGHTS
from suffice.spec import AttentionSpec
from suffice.text import Tokenizer

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
            data = json.loads(file.read(LONGEST))
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
        given = {name: _plain(value) for name, value in sizes.items() if name in known}
        return stored.from_json(kind, given).build([AttentionSpec.from_json(s) for s in specs])
    except (ConfigError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"{path.name} does not say what model it holds ({error!s:.200})."
        ) from error


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _filled(path: Path, model: nn.Module) -> nn.Module:
    checkpoint.load_model_into(path, model)
    return model.eval()
