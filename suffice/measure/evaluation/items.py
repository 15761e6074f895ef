"""The items of a task, as lines of JSON, and the forms they are published in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from suffice.data.find import cache, locate
from suffice.errors import DataError
from suffice.text.plain import opened

T = TypeVar("T")

PLACES = {
    "hellaswag": "eval/hellaswag/hellaswag_val.jsonl.xz",
    "lambada": "eval/lambada_openai/lambada_openai.jsonl.xz",
    "piqa": "eval/piqa/piqa.jsonl.xz",
}
BRACKETS = re.compile(r"\[.*?\]")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A question with several endings, one of them right.

    Args:
        plain: the text before the ending as it stands.
        clean: the same as lm-evaluation-harness words it.
        endings: to choose from, without the space before them.
        clean_endings: the same as lm-evaluation-harness words them.
        right: index of the right one.
    """

    plain: str
    clean: str
    endings: tuple[str, ...]
    clean_endings: tuple[str, ...]
    right: int


@dataclass(frozen=True, kw_only=True)
class Word:
    """A text and the word that ends it.

    Args:
        context: the text, without the space before the word.
        word: to be predicted.
    """

    context: str
    word: str


def find(task: str, data: str | None) -> Path:
    """Return where a task's items are.

    Raises:
        DataError: if they are nowhere.
    """
    if data is not None:
        return Path(data)
    found = locate(PLACES[task])
    if found is None:
        raise DataError(
            f"the items of {task} are not on this machine; put them at {cache() / PLACES[task]}, "
            "below $SUFFICE_DATA, or name their file (.jsonl or .jsonl.xz) by --data."
        )
    return found


def read(path: Path, item: Callable[[dict[str, Any]], T]) -> list[T]:
    """Return the items of a file, one JSON object a line, .xz decompressed.

    Raises:
        DataError: naming the line that is no item.
    """
    with opened(path) as file:
        lines = [line for line in file.read().split(b"\n") if line.strip()]
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(item(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(
                f"{path}, line {number:,}, is no item of this task ({type(error).__name__}: "
                f"{error!s:.100}); give the task's own file."
            ) from error
    if not found:
        raise DataError(f"{path} holds no item; give the task's own file.")
    return found


def hellaswag(row: dict[str, Any]) -> Choice:
    """Return an item of HellaSwag: as published, or with its text cleaned beforehand.

    The cleaned form has "Activity: context" in ctx and no bracketed tags; build-nanogpt reads the
    context without the activity.
    """
    endings = tuple(row["endings"])
    if "activity_label" in row:
        said = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
        plain, clean = row["ctx"], cleaned(said)
    else:
        plain, clean = row["ctx"].partition(": ")[2] or row["ctx"], row["ctx"]
    return Choice(
        plain=plain,
        clean=clean,
        endings=endings,
        clean_endings=tuple(map(cleaned, endings)),
        right=_index(int(row["label"]), endings),
    )


def piqa(row: dict[str, Any]) -> Choice:
    """Return an item of PIQA: as published with its label, or with query, choices and gold."""
    if "goal" in row:
        clean, endings = f"Question: {row['goal']}\nAnswer:", (row["sol1"], row["sol2"])
        right = row["label"]
    else:
        clean = f"{row['query'].rstrip()}\nAnswer:"
        endings, right = tuple(row["choices"]), row["gold"]
    return Choice(
        plain=clean,
        clean=clean,
        endings=endings,
        clean_endings=endings,
        right=_index(int(right), endings),
    )


def lambada(row: dict[str, Any]) -> Word:
    """Return an item of LAMBADA: a text whose last word is asked for, or the two apart."""
    if "text" in row:
        context, _, word = row["text"].rpartition(" ")
    else:
        context, word = row["context"].rstrip(), row["continuation"].strip()
    if not context or not word:
        raise ValueError("an empty context or word")
    return Word(context=context, word=word)


def cleaned(text: str) -> str:
    """Return a text as lm-evaluation-harness reads HellaSwag's.

    Example:
        >>> cleaned(" Cut [header] the [title] grass  short. ")
        'Cut the. grass short.'
    """
    text = text.strip().replace(" [title]", ". ")
    return BRACKETS.sub("", text).replace("  ", " ")


def _index(right: int, endings: tuple[str, ...]) -> int:
    if not 0 <= right < len(endings) or not all(isinstance(one, str) and one for one in endings):
        raise ValueError(f"answer {right} of {len(endings)} endings")
    return right
