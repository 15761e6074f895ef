"""Tokenizers that lie beside weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from suffice.errors import DataError
from suffice.text import BPE, Tokenizer
from suffice.text.llama import llama
from suffice.text.saved import read_object

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
