"""A corpus of the user's own: a folder of text, one text, or lines of JSON."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from suffice.errors import DataError
from suffice.text.documents import VALIDATION, Corpus, Documents, first_held_out, held_out
from suffice.text.jsonl import is_jsonl, rows
from suffice.text.plain import read_text


def of_path(path: Path) -> Corpus:
    """Return the corpus at a path; what is held out for validation never depends on a seed.

    A folder: every file below it that is not hidden, in the order of their names. Files of JSON
    lines (.jsonl, .jsonl.xz) give a document a line, of which a tenth is held out by its text; any
    other file is one document of UTF-8 text (.xz decompressed), held out by its name below the
    folder, at least one of several. A text that a file held out has too is left out of training.
    Links to folders are not followed.

    A file of JSON lines: the same, by line. Any other file is one text: the last tenth of its
    characters is for validation, as nanoGPT cuts Shakespeare.

    Raises:
        DataError: if there is nothing at the path, or nothing readable.
    """
    if not path.is_dir():
        return of_rows(str(path), [path]) if is_jsonl(path) else of_text(path)
    names = files_below(path)
    lines = [path / name for name in names if is_jsonl(path / name)]
    whole = [name for name in names if not is_jsonl(path / name)]
    if not names:
        raise DataError(f"{path} is a folder without a file; put text into it.")
    if not lines and len(whole) == 1:
        return of_text(path / whole[0])
    kept, held = split(whole, at_least_one=not lines)
    return Corpus(
        name=str(path),
        source=f"files below {path}",
        train=Documents(
            name=f"{path}, training",
            read=partial(kept_texts, path, kept, held, lines),
            count=0 if lines else len(kept),
        ),
        validation=Documents(
            name=f"{path}, validation",
            read=partial(held_texts, path, held, lines),
            count=0 if lines else len(held),
        ),
    )


def of_rows(name: str, paths: Sequence[Path]) -> Corpus:
    """Return the corpus of some files of JSON lines."""
    train = partial(kept_texts, Path(), (), (), paths)
    validation = partial(held_texts, Path(), (), paths)
    return Corpus(
        name=name,
        source=f"the lines of {name}",
        train=Documents(name=f"{name}, training", read=train),
        validation=Documents(name=f"{name}, validation", read=validation),
    )


def of_text(path: Path) -> Corpus:
    """Return the corpus of one text file."""
    read_text(path)  # what is wrong with it is told now
    return Corpus(
        name=str(path),
        source=f"the text {path}",
        train=Documents(name=f"{path}, training", read=partial(_part, path, False), count=1),
        validation=Documents(name=f"{path}, validation", read=partial(_part, path, True), count=1),
    )


def split(names: Sequence[str], *, at_least_one: bool = True) -> tuple[list[str], list[str]]:
    """Part names by `held_out`: those kept and those held out, each in the order given.

    Args:
        names: of documents.
        at_least_one: whether one of several is held out, and one kept, where chance would not.
    """
    held = {name for name in names if held_out(name)}
    if at_least_one and len(names) > 1:
        first = first_held_out(names)
        held = {first} if len(held) in (0, len(names)) else held
    return [name for name in names if name not in held], [name for name in names if name in held]


def cut(text: str) -> tuple[str, str]:
    """Cut a text in two: what is kept, and the last tenth of its characters.

    Example:
        >>> cut("0123456789x")
        ('012345678', '9x')
    """
    at = int(len(text) * (1 - VALIDATION))
    return text[:at], text[at:]


def files_below(root: Path, without: Collection[str] = ()) -> list[str]:
    """Return the names of all files below a folder, sorted; hidden ones are passed over.

    Args:
        root: the folder.
        without: names of folders that are not entered.

    Raises:
        DataError: if a folder cannot be read.
    """
    found = []
    for place, folders, files in os.walk(root, onerror=_refuse):
        folders[:] = [name for name in folders if name[0] != "." and name not in without]
        here = Path(place).relative_to(root)
        found += [(here / name).as_posix() for name in files if name[0] != "."]
    return sorted(found)


def _refuse(error: OSError) -> None:
    raise DataError(
        f"{error.filename} cannot be read ({error.strerror}); check its rights."
    ) from error


def kept_texts(
    root: Path, kept: Sequence[str], held: Sequence[str], lines: Sequence[Path] = ()
) -> Iterator[str]:
    """Yield the texts to learn from, without those that are held out under another name.

    Args:
        root: a folder.
        kept: names of the files below it to learn from.
        held: names of the files below it that are held out.
        lines: files of JSON lines.
    """
    known = {_digest(text) for text in held_texts(root, held)}
    for name in kept:
        text = read_text(root / name)
        if _digest(text) not in known:
            yield text
    for text in chain.from_iterable(map(rows, lines)):
        if not held_out(text) and _digest(text) not in known:
            yield text


def held_texts(root: Path, held: Sequence[str], lines: Sequence[Path] = ()) -> Iterator[str]:
    """Yield the texts to choose by; the arguments are those of `kept_texts`."""
    for name in held:
        yield read_text(root / name)
    yield from filter(held_out, chain.from_iterable(map(rows, lines)))


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _part(path: Path, held: bool) -> Iterator[str]:
    yield cut(read_text(path))[held]
