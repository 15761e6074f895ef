"""Folders of converted models: a model's folder with the certificate of its conversion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from suffice.convert.certificate import Certificate
from suffice.convert.sources.source import Source
from suffice.errors import ConfigError
from suffice.files import write_json
from suffice.models import LM, folder

CERTIFICATE = "certificate.json"


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
    """Write a converted model and its certificate; an earlier one in the folder is replaced whole.

    The facts are further entries of config.json.
    """
    check_source(source)
    with folder.replacing_model(out) as new:
        write_json(new / CERTIFICATE, certificate.to_json())
        folder.save(new, model, source.tokenizer, **(source.facts | facts))
