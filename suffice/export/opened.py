"""What is exported: a checkpoint of any kind, its weights plain numbers in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from suffice import checkpoint
from suffice.convert.sources import Source, open_source
from suffice.convert.sources.finite import check_finite
from suffice.convert.sources.weights import read_json
from suffice.errors import CheckpointError, ConfigError
from suffice.models import folder, stored
from suffice.models.classifier import ClassifierConfig
from suffice.models.packed import schemes_of, unpack
from suffice.models.vit import ViTConfig
from suffice.spec import AttentionSpec

KINDS: dict[str, type] = {"text classifier": ClassifierConfig, "image classifier": ViTConfig}
"""Models that read an input at once, as `suffice convert` names them in a config.json."""


def opened(path: Path, *, tokenizer: Path | None = None) -> tuple[Source, bool]:
    """Return the model at a path in float32, and whether its weights had been packed.

    Raises:
        CheckpointError: if there is no such model, or its files do not fit each other.
        ConfigError: if the model has something that no model here has.
        DataError: if a tokenizer is absent or damaged.
    """
    kind = _kind(path)
    source = _whole(path, kind) if kind else open_source(path, tokenizer=tokenizer)
    model = source.model
    packed = bool(schemes_of(model))
    unpack(model)
    model.float().eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return source, packed


def _kind(path: Path) -> str:
    """Return the kind of a folder of a classifier, or ""."""
    if not (path / folder.CONFIG).is_file():
        return ""
    found = read_json(path / folder.CONFIG)
    return found["kind"] if found.get("kind") in KINDS and "model_type" not in found else ""


def _whole(path: Path, kind: str) -> Source:
    told = read_json(path / folder.CONFIG)
    weights = path / folder.WEIGHTS
    try:
        sizes = {n: tuple(v) if isinstance(v, list) else v for n, v in told["model"].items()}
        config = stored.from_json(KINDS[kind], sizes)
        model: nn.Module = config.build([AttentionSpec.from_json(one) for one in told["specs"]])
    except (ConfigError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} cannot be loaded: its {folder.CONFIG} does not describe the {kind} that it "
            f"names ({error!s:.200}); give the folder whole."
        ) from error
    if checkpoint.load_model_into(weights, model) != json.loads(json.dumps(told)):
        raise CheckpointError(
            f"{weights} was written with another {folder.CONFIG} than the one beside it; give the "
            "folder whole."
        )
    check_finite(model.state_dict(), weights)
    return Source(model=model, kind=kind, facts=_facts(told))


def _facts(told: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in told.items() if name not in ("model", "specs", "kind")}
