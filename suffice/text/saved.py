"""The folder of a tokenizer: two files of JSON that the Hugging Face libraries read too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from suffice.data.write import atomically
from suffice.errors import DataError
from suffice.text.plain import read_text

DESCRIPTION = "tokenizer.json"  # in the format of the tokenizers library
NAMES = "tokenizer_config.json"  # which token begins a document and which ends it

ADVICE = "give another folder"


def write(folder: Path | str, description: str, *, begin: str | None, end: str | None) -> None:
    """Write a tokenizer's description and the names of its two special tokens.

    Raises:
        DataError: if the folder cannot be written.
    """
    folder = Path(folder)
    facts: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    facts |= {"clean_up_tokenization_spaces": False, "bos_token": begin, "eos_token": end}
    with atomically(folder / DESCRIPTION, advice=ADVICE) as temporary:
        temporary.write_text(description, encoding="utf-8", newline="\n")
    with atomically(folder / NAMES, advice=ADVICE) as temporary:
        temporary.write_text(json.dumps(facts, indent=2) + "\n", encoding="ascii", newline="\n")


def read(folder: Path | str) -> tuple[str, dict[str, Any], str | None, str | None]:
    """Return the description of a tokenizer, as text and parsed, and its begin and end tokens.

    Raises:
        DataError: if a file is absent or not what `write` writes.
    """
    folder = Path(folder)
    text, description = read_object(folder / DESCRIPTION)
    _, facts = read_object(folder / NAMES)
    begin, end = (_name(facts, key, folder / NAMES) for key in ("bos_token", "eos_token"))
    return text, description, begin, end


def read_object(path: Path) -> tuple[str, dict[str, Any]]:
    """Return a file of one JSON object, as text and parsed.

    Raises:
        DataError: if it is absent, longer than a text may be, or not a JSON object.
    """
    text = read_text(path)
    return text, parsed(text, path)


def parsed(text: str, name: object) -> dict[str, Any]:
    """Return the JSON object that a text spells.

    Raises:
        DataError: if it spells none.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name} is not JSON ({error}); give the file complete.") from error
    if not isinstance(value, dict):
        raise DataError(f"{name} is not a JSON object; give the file of a tokenizer.")
    return value


def _name(facts: dict[str, Any], key: str, path: Path) -> str | None:
    value = facts.get(key)
    value = value.get("content") if isinstance(value, dict) else value
    if value is not None and not isinstance(value, str):
        raise DataError(f"{path} gives {key} as {value!r:.80}; a token's text or null is due.")
    return value
