"""A converted model as a folder: what `suffice train` leaves, with the certificate beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from suffice import checkpoint
from suffice.convert.certificate import Certificate
from suffice.convert.sources.source import Source
from suffice.errors import CheckpointError, ConfigError
from suffice.files import replacing
from suffice.models import LM, folder, stored

CERTIFICATE = "certificate.json"
OTHERS = {"Classifier": "text classifier", "ViT": "image classifier"}


def check_source(source: Source) -> None:
    """Refuse what could not be written as a folder, before any work is done.

    Raises:
        ConfigError: if a language model has no tokenizer.
    """
    if isinstance(source.model, LM) and source.tokenizer is None:
        raise ConfigError(
            f"this {source.kind} model has no tokenizer beside it, and a folder of a language "
            "model holds one; name it by --tokenizer."
        )


def save(
    out: Path, model: nn.Module, source: Source, certificate: Certificate, **facts: Any
) -> None:
    """Write a converted model; the certificate comes first and the weights last.

    Args:
        out: the folder.
        model: what was converted.
        source: what it was.
        certificate: what that changed.
        **facts: what else is known.

    Raises:
        CheckpointError: if something cannot be written.
        ConfigError: if a language model has no tokenizer.
    """
    check_source(source)
    try:
        out.mkdir(parents=True, exist_ok=True)
        _write(out / CERTIFICATE, certificate.to_json())
        if isinstance(model, LM):
            folder.save(out, model, source.tokenizer, **(source.facts | facts))
            return
        specs = [block.attention.spec.to_json() for block in model.blocks]
        described = {"model": stored.to_json(model.config), "specs": specs, **facts}
        described["kind"] = OTHERS[type(model).__name__]
        _write(out / folder.CONFIG, described)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {out} ({error.strerror or error}); free space, or give another --out."
        ) from error
    checkpoint.save_model(out / folder.WEIGHTS, model, described)


def _write(path: Path, data: dict[str, Any]) -> None:
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="ascii", newline="\n")
