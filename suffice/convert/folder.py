"""Folders of converted models: the certificate, the configuration and the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from suffice import checkpoint
from suffice.convert.certificate import Certificate
from suffice.convert.sources.source import Source
from suffice.convert.sources.weights import check_finite, read_json
from suffice.errors import CheckpointError, ConfigError
from suffice.files import write_json
from suffice.models import LM, folder
from suffice.models.classifier import ClassifierConfig
from suffice.models.vit import ViTConfig
from suffice.spec import AttentionSpec

CERTIFICATE = "certificate.json"
CLASSIFIERS: dict[str, type] = {"text classifier": ClassifierConfig, "image classifier": ViTConfig}
"""Models that read a whole input at once, by the "kind" in their config.json."""


def check_source(source: Source) -> None:
    """Check that a model can be written as a folder, before any work is done."""
    if isinstance(source.model, LM) and source.tokenizer is None:
        raise ConfigError(
            f"this {source.kind} model has no tokenizer beside it, and a folder of a language "
            "model holds one; name it by --tokenizer."
        )


def save(
    out: Path, model: nn.Module, source: Source, certificate: Certificate, **facts: Any
) -> None:
    """Write a converted model; the certificate comes first and the weights last.

    The facts are further entries of config.json.
    """
    check_source(source)
    write_json(out / CERTIFICATE, certificate.to_json())
    if isinstance(model, LM):
        folder.save(out, model, source.tokenizer, **(source.facts | facts))
        return
    config = {
        "model": model.config.to_json(),
        "specs": [block.attention.spec.to_json() for block in model.blocks],
        **facts,
        "kind": next(k for k, one in CLASSIFIERS.items() if type(model.config) is one),
    }
    write_json(out / folder.CONFIG, config)
    checkpoint.save_model(out / folder.WEIGHTS, model, config)


def classifier_kind(path: Path) -> str:
    """Return the key in CLASSIFIERS of a folder that `save` wrote, or "" for any other path."""
    if not (path / folder.CONFIG).is_file():
        return ""
    config = read_json(path / folder.CONFIG)
    kind = config.get("kind", "")
    return kind if kind in CLASSIFIERS and "model_type" not in config else ""


def load_classifier(path: Path) -> Source:
    """Return the classifier in a folder that `save` wrote."""
    config, weights, kind = read_json(path / folder.CONFIG), path / folder.WEIGHTS, ""
    try:
        kind = config["kind"]
        specs = [AttentionSpec.from_json(spec) for spec in config["specs"]]
        model: nn.Module = CLASSIFIERS[kind].from_json(config["model"]).build(specs)
    except (ConfigError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} cannot be loaded: its {folder.CONFIG} does not describe the {kind} that it "
            f"names ({error!s:.200}); give the folder whole."
        ) from error
    if checkpoint.load_model_into(weights, model) != config:
        raise CheckpointError(
            f"{weights} was written with another {folder.CONFIG} than the one beside it; give the "
            "folder whole."
        )
    check_finite(model.state_dict(), weights)
    facts = {name: one for name, one in config.items() if name not in ("model", "specs", "kind")}
    return Source(model=model, kind=kind, facts=facts)
