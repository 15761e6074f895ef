"""Iterable documents, and a corpus with its training, validation and test split."""

from __future__ import annotations

import contextlib
import hashlib
import json
import lzma
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import length_hint
from pathlib import Path
from typing import Any, BinaryIO

from suffice.errors import ConfigError, DataError

VALIDATION = 0.1  # of the documents, or of the text where there is but one


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Texts that each pass reads again; empty ones are skipped.

    Example:
        >>> documents = Documents(name="two", read=lambda: ["a", "", "b"])
        >>> list(documents), list(documents)
        (['a', 'b'], ['a', 'b'])
    """

    name: str  # name of the documents in errors, such as "stdlib, validation"
    read: Callable[[], Iterable[str]] = field(repr=False)  # begins a pass
    count: int = 0  # number of documents, for progress; 0 if unknown

    def __iter__(self) -> Iterator[str]:
        empty = True
        for text in self.read():
            if text:
                empty = False
                yield text
        if empty:
            raise DataError(f"{self.name} holds no text; give more, and different, documents.")

    def __length_hint__(self) -> int:
        return self.count


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Text to learn a language from."""

    name: str  # name or path of the corpus
    source: str  # who made it, and its terms
    train: Documents  # documents to learn from
    validation: Documents  # documents that weights are chosen by; none of them is in train
    test: Documents | None = None  # documents to report on, where the corpus has such a part

    @classmethod
    def of(
        cls,
        name: str,
        source: str,
        train: Callable[[], Iterable[str]] | Sequence[str],
        validation: Callable[[], Iterable[str]] | Sequence[str],
        test: Sequence[str] | None = None,
        *,
        counts: tuple[int, int] = (0, 0),
    ) -> Corpus:
        """Return a corpus whose parts are lists of texts, or functions that begin a pass."""

        def part(which: str, texts: Any, count: int) -> Documents:
            if callable(texts):
                return Documents(name=f"{name}, {which}", read=texts, count=count)
            return Documents(name=f"{name}, {which}", read=partial(iter, texts), count=len(texts))

        return cls(
            name=name,
            source=source,
            train=part("training", train, counts[0]),
            validation=part("validation", validation, counts[1]),
            test=None if test is None else part("test", test, 0),
        )


def held_out(key: str) -> bool:
    """Return whether the document of a key, its name or else its text, is for validation.

    A fixed tenth, drawn by the key's digest: the same key falls on the same side everywhere and for
    good, whatever else is in the corpus.
    """
    return _draw(key) < VALIDATION


def _draw(key: str) -> float:
    """Return a pseudorandom number in [0, 1) that depends only on the key."""
    digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


MAX_TEXT_BYTES = 1 << 28  # of one text: it and its tokens are held in memory


@contextlib.contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading, .xz decompressed."""
    if not path.is_file():  # reading a pipe or a device might never end
        what = "is not a regular file" if path.exists() else "does not exist"
        raise DataError(f"{path} {what}; give a file of text.")
    try:
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
            yield file
    except (lzma.LZMAError, EOFError) as error:
        raise DataError(
            f"{path} is truncated or damaged ({error}); replace it by a complete copy."
        ) from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror or error}); check the disk and its rights."
        ) from error


def read_text(path: Path) -> str:
    """Return the content of a text file, see `decode_text`."""
    with open_file(path) as file:
        return decode_text(file.read(MAX_TEXT_BYTES + 1), path)


def decode_text(content: bytes, name: object) -> str:
    """Return UTF-8 text as it is, line ends included; a byte order mark in front is dropped."""
    if len(content) > MAX_TEXT_BYTES:
        raise DataError(
            f"{name} holds more than {MAX_TEXT_BYTES:,} bytes in one text; split it into several "
            'files, or into lines {"text": ...} of a .jsonl file.'
        )
    if b"\0" in content:
        raise DataError(f"{name} is not text (it holds zero bytes); convert it or take it away.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name} is not UTF-8 text ({error.reason}, byte {error.start:,}); convert it or take "
            "it away."
        ) from error


JSON_LINES = (".jsonl", ".jsonl.xz")


def read_jsonl(path: Path) -> Iterator[str]:
    """Yield the text of each line of a .jsonl or .jsonl.xz file; one line is held at a time."""
    with open_file(path) as file:
        yield from parse_jsonl(iter(partial(file.readline, MAX_TEXT_BYTES + 1), b""), path)


def parse_jsonl(lines: Iterable[bytes], name: object) -> Iterator[str]:
    r"""Yield the string under "text" of each line; other keys and blank lines are skipped.

    Example:
        >>> list(parse_jsonl([b'{"text": "one"}\n', b'{"id": 2, "text": "two"}\n'], "a file"))
        ['one', 'two']
    """
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_TEXT_BYTES:
            raise DataError(
                f"{name}, line {number:,}, is longer than {MAX_TEXT_BYTES:,} bytes; cut the "
                "document into several."
            )
        if line.strip():
            yield _text(line, f"{name}, line {number:,}")


def _text(line: bytes, where: str) -> str:
    wanted = 'a line is a JSON object with a string under "text".'
    try:
        row = json.loads(line)
        text = row.get("text") if isinstance(row, dict) else None
        if isinstance(text, str):
            text.encode()  # JSON can spell halves of a surrogate pair, which are not text
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}, is not a document ({error}); {wanted}") from error
    if not isinstance(text, str):
        raise DataError(f"{where}, is not a document; {wanted}")
    return text


def corpus_at(path: Path) -> Corpus:
    """Return the corpus at a path; what is held out for validation never depends on a seed.

    A folder: every file below it that is not hidden, in the order of their names. Files of JSON
    lines (.jsonl, .jsonl.xz) give a document a line, of which a tenth is held out by its text; any
    other file is one document of UTF-8 text (.xz decompressed), held out by its name below the
    folder, at least one of several. A text that a held-out file has too is left out of training.
    Links to folders are not followed.

    A file of JSON lines: the same, by line. Any other file is one text: the last tenth of its
    characters is for validation, as nanoGPT cuts Shakespeare.
    """
    is_folder = path.is_dir()
    root, names = (path, files_below(path)) if is_folder else (path.parent, [path.name])
    if not names:
        raise DataError(f"{path} is a folder without a file; put text into it.")
    lines = [root / name for name in names if name.endswith(JSON_LINES)]
    texts = [name for name in names if not name.endswith(JSON_LINES)]
    if not lines and len(texts) == 1:
        return _text_corpus(root / texts[0])
    train, validation = split(texts, at_least_one=not lines)
    return Corpus.of(
        str(path),
        f"files below {path}" if is_folder else f"the lines of {path}",
        partial(training_texts, root, train, validation, lines),
        partial(validation_texts, root, validation, lines),
        counts=(0, 0) if lines else (len(train), len(validation)),
    )


def _text_corpus(path: Path) -> Corpus:
    read_text(path)  # an error is raised now, not in the first pass

    def part(number: int) -> Iterator[str]:
        yield cut(read_text(path))[number]

    return Corpus.of(
        str(path), f"the text {path}", partial(part, 0), partial(part, 1), counts=(1, 1)
    )


def split(names: Sequence[str], *, at_least_one: bool = True) -> tuple[list[str], list[str]]:
    """Split names by `held_out`: those for training and those for validation, each in order.

    With `at_least_one`, both parts get one of several names, where chance would not.
    """
    drawn = {name for name in names if held_out(name)}
    if at_least_one and len(names) > 1 and len(drawn) in (0, len(names)):
        drawn = {min(names, key=_draw)}
    return [name for name in names if name not in drawn], [name for name in names if name in drawn]


def cut(text: str) -> tuple[str, str]:
    """Cut a text in two: the training part, and the last tenth of its characters."""
    at = int(len(text) * (1 - VALIDATION))
    return text[:at], text[at:]


def files_below(root: Path, without: Collection[str] = ()) -> list[str]:
    """Return the names of all files below a folder but hidden ones, sorted; skip some folders."""
    names = []
    for place, folders, files in os.walk(root, onerror=_refuse):
        folders[:] = [name for name in folders if name[0] != "." and name not in without]
        here = Path(place).relative_to(root)
        names += [(here / name).as_posix() for name in files if name[0] != "."]
    return sorted(names)


def _refuse(error: OSError) -> None:
    raise DataError(
        f"{error.filename} cannot be read ({error.strerror}); check its rights."
    ) from error


def training_texts(
    root: Path, train: Sequence[str], validation: Sequence[str], lines: Sequence[Path] = ()
) -> Iterator[str]:
    """Yield the texts to learn from, without those that are held out under another name.

    `train` and `validation` are names of files below `root`, of which the second are held out;
    `lines` are files of JSON lines, of which a tenth is held out.
    """
    excluded = {_digest(text) for text in validation_texts(root, validation)}
    for name in train:
        text = read_text(root / name)
        if _digest(text) not in excluded:
            yield text
    for text in chain.from_iterable(map(read_jsonl, lines)):
        if not held_out(text) and _digest(text) not in excluded:
            yield text


def validation_texts(
    root: Path, validation: Sequence[str], lines: Sequence[Path] = ()
) -> Iterator[str]:
    """Yield the texts that are held out; the arguments are those of `training_texts`."""
    for name in validation:
        yield read_text(root / name)
    yield from filter(held_out, chain.from_iterable(map(read_jsonl, lines)))


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def count_hint(documents: Iterable[str]) -> int:
    """Return how many documents there are, 0 if unknown; one text alone is a ConfigError."""
    if isinstance(documents, str):
        raise ConfigError("the documents are one text; give an iterable of texts, such as [text].")
    return length_hint(documents)
