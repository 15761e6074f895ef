"""The tokenizers library, which is optional, and the care its files are read with."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from suffice.errors import ConfigError, DataError
from suffice.text.saved import parsed


def library() -> ModuleType:
    """Return the module `tokenizers`.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise ConfigError(
            "byte-pair tokenizers need the library tokenizers, which is not installed; run "
            "pip install 'suffice[text]', or use Characters."
        ) from error
    return tokenizers


def built(text: str, name: object) -> Any:
    """Return the byte-pair tokenizer that a text in the library's format describes.

    It encodes texts whole, whatever the description says of truncation and padding, and the names
    of special tokens in a text are ordinary text to it.

    Args:
        text: the content of a tokenizer.json.
        name: of the file, for errors.

    Raises:
        ConfigError: if the library is not installed.
        DataError: if the text describes no byte-pair tokenizer, or one that is not a function.
    """
    tokenizers = library()
    description = parsed(text, name)
    _refuse(description, name)
    whole = json.dumps({**description, "truncation": None, "padding": None})
    with told(name):
        tokenizer = tokenizers.Tokenizer.from_str(whole)
    tokenizer.encode_special_tokens = True
    return tokenizer


@contextlib.contextmanager
def told(name: object) -> Iterator[None]:
    """Tell in a sentence what the library refuses, or breaks at, in the block.

    Raises:
        DataError: naming the tokenizer.
    """
    try:
        yield
    except BaseException as error:
        # The library raises nothing narrower than Exception, and PanicException, which is none.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(
            f"the tokenizers library cannot use {name} ({error!s:.200}); give the file of a "
            "tokenizer complete, or install a newer library."
        ) from error


def _refuse(description: dict[str, Any], name: object) -> None:
    """Refuse what the library takes although the tokenizer would be random or ambiguous."""
    model = description.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        kind = model.get("type") if isinstance(model, dict) else model
        raise DataError(f"{name} describes a tokenizer of type {kind!r:.40}; BPE is due.")
    if model.get("dropout"):
        raise DataError(
            f"{name} drops merges at random (dropout {model['dropout']!r:.20}), so that a text has "
            "many encodings; set dropout to null in it."
        )
    ids = model.get("vocab")
    if not isinstance(ids, dict) or len(set(map(str, ids.values()))) < len(ids):
        raise DataError(f"{name} has no vocabulary, or one that gives two tokens the same id.")
