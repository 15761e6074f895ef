"""Corpora by name or path."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from suffice.data.find import locate
from suffice.errors import DataError, unknown
from suffice.text.documents import Corpus
from suffice.text.folder import of_path
from suffice.text.samples import c4_sample, openwebtext_sample
from suffice.text.stdlib import stdlib
from suffice.text.tinyshakespeare import tinyshakespeare
from suffice.text.wikitext2 import wikitext2

if TYPE_CHECKING:
    from rich.console import Console

CORPORA: dict[str, Callable[..., Corpus]] = {
    "stdlib": stdlib,
    "tinyshakespeare": tinyshakespeare,
    "wikitext2": wikitext2,
    "openwebtext_sample": openwebtext_sample,
    "c4_sample": c4_sample,
}

PLAIN_NAME = re.compile(r"\w+")


def corpus(name_or_path: str | Path, *, console: Console | None = None) -> Corpus:
    """Return a corpus by its name, or the user's own text by its path.

    A text equal to a key of `CORPORA` is that set, found below $SUFFICE_DATA, then in the user's
    cache. Anything else is a path: a folder, a file of text, .jsonl or .jsonl.xz (`of_path`). A
    plain name of which there is no such path may also be a folder of the user's own at
    lm/<name> below $SUFFICE_DATA or in the cache.

    Args:
        name_or_path: a key of `CORPORA`, or where the text lies.
        console: where a download shows its progress; None shows nothing.

    Raises:
        ConfigError: for a name that is neither a corpus nor a path.
        DataError: if the files are absent, or cannot be read.

    Example:
        >>> corpus("stdlib").name
        'stdlib'
    """
    if isinstance(name_or_path, str) and name_or_path in CORPORA:
        build = CORPORA[name_or_path]
        takes = inspect.signature(build).parameters
        return build(console=console) if "console" in takes else build()
    path = Path(name_or_path)
    if os.path.exists(path):  # Path.exists raises for names too long
        return of_path(path)
    if isinstance(name_or_path, Path) or not PLAIN_NAME.fullmatch(name_or_path):
        raise DataError(
            f"there is no corpus at {path}; give an existing folder of text, .txt, .jsonl or "
            f".jsonl.xz, or one of {', '.join(CORPORA)}."
        )
    mine = locate(f"lm/{name_or_path}")
    if mine is None:
        raise unknown("corpus", name_or_path, [*CORPORA, "the path of a text or folder"])
    return of_path(mine)
