"""Folders of converted models: a model's folder with the certificate of its conversion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from suffice.convert.certificate import Certificate
from suffice.convert.sources import Source
from suffice.errors import ConfigError
from suffice.models import LM, folder
from suffice.utils.files import read_json, write_json
from suffice.utils.hub import is_reference

CERTIFICATE = "certificate.json"
SOURCE = "source"  # its entry with the path of the model that was converted


def source_of(converted: Path) -> Path:
    path = converted / CERTIFICATE
    source = read_json(path).get(SOURCE) if path.is_file() else None
    if not isinstance(source, str):
        raise ConfigError(
            f"--teacher: {converted} does not record the model it was converted from; name it."
        )
    if not is_reference(source) and not Path(source).exists():
        raise ConfigError(
            f"--teacher: {converted} was converted from {source}, which is no longer there; name "
            "its new place."
        )
    return Path(source)


def check_source(source: Source) -> None:
    """Check that a model can be written as a folder, before any work is done."""
    if isinstance(source.model, LM) and source.tokenizer is None:
        raise ConfigError(
            f"this {source.kind} model has no tokenizer, and a folder of a language model "
            "holds one; name it by --tokenizer."
        )


def save(
    out: Path,
    model: nn.Module,
    source: Source,
    certificate: Certificate,
    *,
    path: Path | None = None,
    **facts: Any,
) -> None:
    """Write a converted model and its certificate; an earlier one in the folder is replaced whole.

    Path is where the source lies, which `suffice heal` takes as the teacher by default; the facts
    are further entries of config.json.
    """
    check_source(source)
    with folder.replacing_model(out) as new:
        origin = (
            {} if path is None else {SOURCE: str(path if is_reference(path) else path.resolve())}
        )
        write_json(new / CERTIFICATE, certificate.to_json() | origin)
        folder.save(new, model, source.tokenizer, **(source.facts | facts))
