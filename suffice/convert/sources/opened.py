"""Checkpoints by their path: what kind they are is told by what lies there."""

from __future__ import annotations

from pathlib import Path

from suffice.convert.sources import hugging_face, llama2c
from suffice.convert.sources.finite import check_finite
from suffice.convert.sources.source import Source
from suffice.convert.sources.tokenizer import tokenizer_in, tokenizer_of_llama2c
from suffice.errors import CheckpointError, ConfigError
from suffice.models import LM, folder
from suffice.text import Tokenizer, load_tokenizer
from suffice.text.llama import llama

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
