"""Checkpoints by their path: what kind they are is told by what lies there."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from suffice.convert.sources import hugging_face, llama2c
from suffice.convert.sources.weights import check_finite
from suffice.errors import CheckpointError, ConfigError, DataError
from suffice.models import LM, folder
from suffice.text import BPE, Tokenizer, load_tokenizer
from suffice.text.llama import llama
from suffice.text.tokenizer import read_object


@dataclass(frozen=True, kw_only=True)
class Source:
    """A model of this library, and what else its files said.

    Args:
        model: with Standard attention, in evaluation; of a folder of this library whatever it had.
        kind: "suffice", "llama2.c", or the architecture that a config.json of transformers names.
        tokenizer: of its tokens; None for a model that reads none, or where none was found.
        facts: entries for the config.json of a folder that it is written to.
    """

    model: nn.Module
    kind: str
    tokenizer: Tokenizer | None = None
    facts: dict[str, Any] = field(default_factory=dict)


FILE = "tokenizer.json"


def tokenizer_of_llama2c(checkpoint: Path) -> Tokenizer | None:
    """Return the tokenizer beside a checkpoint of llama2.c: the one file tok*.bin there.

    Raises:
        DataError: if there are several, or it is damaged.
    """
    found = sorted(path for path in checkpoint.parent.glob("tok*.bin") if path != checkpoint)
    if len(found) > 1:
        raise DataError(
            f"several tokenizers lie beside {checkpoint}: {', '.join(p.name for p in found[:4])}; "
            "name one by --tokenizer."
        )
    return llama(found[0]) if found else None


def tokenizer_in(folder: Path, config: dict[str, Any]) -> Tokenizer | None:
    """Return the tokenizer.json of a folder; begin and end are those that config.json names.

    Args:
        folder: with the files of transformers.
        config: the content of its config.json.

    Raises:
        ConfigError: if the tokenizers library is not installed.
        DataError: if it is no byte-pair tokenizer, or damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    text, found = read_object(path)
    names = _names(found)
    around = {"begin": config.get("bos_token_id"), "end": config.get("eos_token_id")}
    around = {n: one[0] if isinstance(one, list) and one else one for n, one in around.items()}
    marks = {n: names.get(one) for n, one in around.items() if type(one) is int}
    return BPE(text, **marks, name=path)


def _names(description: dict[str, Any]) -> dict[int, str]:
    """Return the names of ids."""
    try:
        known = {id_: name for name, id_ in description["model"]["vocab"].items()}
        known |= {row["id"]: row["content"] for row in description.get("added_tokens") or ()}
    except (KeyError, TypeError, AttributeError) as error:
        told = json.dumps(str(error))
        raise DataError(f"{FILE} has no vocabulary of a byte-pair tokenizer ({told}).") from error
    return known


CONFIG = "config.json"


def open_source(path: Path | str, *, tokenizer: Path | str | None = None) -> Source:
    """Return the model at a path; nothing is fetched, unpickled or executed.

    Args:
        path: a folder of `suffice train` or `suffice convert`, a folder with the config.json and
            the safetensors of a model of transformers, or a .bin of llama2.c.
        tokenizer: a saved tokenizer's folder, a tokenizer.json or tokenizer.bin of a Llama model;
            None = the one that lies there.

    Raises:
        CheckpointError: if there is no such model, its files do not fit each other, it holds NaN,
            or it is of an architecture that is not read.
        ConfigError: if the model has something that no model here has.
        DataError: if a tokenizer is absent or damaged.
    """
    path = Path(path)
    if path.is_file() and path.suffix == ".bin" and path.stem != "pytorch_model":
        source = Source(model=llama2c.read(path), kind="llama2.c")
        found = tokenizer_of_llama2c(path) if tokenizer is None else _given(tokenizer)
        return _with(source, found, path)
    if not path.is_dir():
        what = "is no checkpoint" if path.exists() else "does not exist"
        raise CheckpointError(
            f"{path} {what}; give a folder of suffice, a folder with config.json and safetensors "
            "of transformers, or a .bin of llama2.c. Other files are never opened."
        )
    config = hugging_face.config_in(path)
    if "model_type" not in config:
        lm, found, facts = folder.load(path)
        check_finite(lm.state_dict(), path)
        if tokenizer is not None:
            found = _given(tokenizer)
        return _with(Source(model=lm.float(), kind="suffice", facts=facts), found, path)
    model = hugging_face.read(path, config)
    source = Source(model=model, kind=str(config["model_type"]))
    if not isinstance(model, LM):
        return source
    return _with(
        source, tokenizer_in(path, config) if tokenizer is None else _given(tokenizer), path
    )


def _with(source: Source, tokenizer: Tokenizer | None, path: Path) -> Source:
    """Return the source with its tokenizer, which must fit."""
    size = source.model.config.vocabulary_size
    if tokenizer is not None and tokenizer.vocabulary_size > size:
        raise ConfigError(
            f"the tokenizer has {tokenizer.vocabulary_size:,} tokens and {path} {size:,}; give the "
            "tokenizer that the model was trained with."
        )
    return Source(model=source.model, kind=source.kind, tokenizer=tokenizer, facts=source.facts)


def _given(tokenizer: Path | str) -> Tokenizer:
    path = Path(tokenizer)
    return load_tokenizer(path) if path.is_dir() else llama(path)
