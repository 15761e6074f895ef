"""Token files: written as a stream, read through a memory map.

Letters: B windows, T tokens of a window but the last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from suffice.data.files import atomically, write_npy_header
from suffice.errors import ConfigError, DataError
from suffice.text.documents import count_hint
from suffice.text.tokenizer import ADVICE, Tokenizer, check_ids, check_text
from suffice.utils.files import read_record
from suffice.utils.progress import bar
from suffice.utils.records import check_fields, is_whole

if TYPE_CHECKING:
    from rich.console import Console

VERSION = 2  # 1: tokens and starts without the header of .npy
STARTS_CHECKED = 1 << 20  # at once
STARTS = np.dtype("<u8")
REWRITE = "Write the tokens again with TokenFile.write."


@dataclass(frozen=True, kw_only=True)
class TokenHeader:
    """The facts of a file of tokens; ConfigError if a value is not legal."""

    tokens: int  # how many there are, >= 1
    documents: int  # how many, >= 1
    vocabulary_size: int  # ids are 0 .. vocabulary_size - 1
    begin: int | None  # id before each document
    end: int | None  # id after each document
    tokenizer: str  # its fingerprint
    version: int = VERSION  # of the format

    def __post_init__(self) -> None:
        check_fields(self)
        special = [id_ for id_ in (self.begin, self.end) if id_ is not None]
        if (
            not 1 <= self.version <= VERSION
            or not 1 <= self.documents <= self.tokens
            or not 1 <= self.vocabulary_size <= 1 << 32
            or not all(0 <= id_ < self.vocabulary_size for id_ in special)
        ):
            raise ConfigError(
                f"{self} is not legal; 1 <= documents <= tokens, ids below vocabulary_size and "
                f"versions up to {VERSION} are."
            )


def dtype_for(vocabulary_size: int) -> np.dtype[Any]:
    """Return uint16 where every id fits, else uint32; little-endian on every machine."""
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")


def header_at(path: Path) -> Path:
    """Return where the facts of the tokens at `path` are: JSON."""
    return path.with_name(f"{path.name}.json")


def starts_at(path: Path) -> Path:
    """Return where the starts of the documents of the tokens at `path` are: uint64."""
    return path.with_name(f"{path.name}.starts")


class TokenFile:
    """The tokens of many documents, one after another, on disk.

    Three files: `path` holds the tokens, uint16 where every id fits and else uint32; `path`.starts
    where each document starts, both in NumPy's format .npy; `path`.json the facts, with the
    fingerprint of the tokenizer. Documents are in the order they were given, each between the
    tokenizer's `begin` and `end` where it has them.

    Args:
        tokenizer: tokenizer of the model that will read the tokens; None accepts those of any.

    Attributes:
        path: of the tokens.
        header: the facts.
        tokens: all of them, uint16 or uint32 [N], a read-only map of the file.
        documents: where each document starts, uint64 [documents], a read-only map.

    Example:
        >>> import tempfile
        >>> from suffice.text import Characters
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = TokenFile.write(f"{folder}/t.bin", ["abc", "de"], Characters("abcde"))
        ...     len(file), file.documents.tolist(), list(file.windows(2))
        (5, [0, 3], [tensor([[0, 1, 2]]), tensor([[2, 3, 4]])])
    """

    def __init__(self, path: Path | str, *, tokenizer: Tokenizer | None = None) -> None:
        self.path = Path(path)
        self.header = read_record(TokenHeader, header_at(self.path), advice=REWRITE)
        if tokenizer is not None and tokenizer.fingerprint != self.header.tokenizer:
            raise DataError(
                f"{self.path} was written with another tokenizer; write it again with this one, or "
                "load the one it was written with."
            )
        header, starts = self.header, starts_at(self.path)
        self.tokens = _map(self.path, header, dtype_for(header.vocabulary_size), header.tokens)
        self.documents = _map(starts, header, STARTS, header.documents)
        _check_starts(self.documents, header.tokens, starts)

    @classmethod
    def write(
        cls,
        path: Path | str,
        documents: Iterable[str],
        tokenizer: Tokenizer,
        console: Console | None = None,
    ) -> TokenFile:
        """Write the tokens of some documents, replacing what is there only when all are written."""
        path = Path(path)
        header = header_at(path)
        with (
            atomically(starts_at(path), advice=ADVICE) as starts_part,
            atomically(path, advice=ADVICE) as tokens_part,
        ):
            with starts_part.open("wb") as starts, tokens_part.open("wb") as tokens:
                facts = _write(documents, tokenizer, tokens, starts, path, console)
            # The facts are removed before the other two are replaced and come back last: nobody
            # ever reads files that do not belong together.
            header.unlink(missing_ok=True)
        with atomically(header, advice=ADVICE) as temporary:
            text = json.dumps(asdict(facts), indent=2) + "\n"
            temporary.write_text(text, encoding="ascii", newline="\n")
        return cls(path, tokenizer=tokenizer)

    def __len__(self) -> int:
        return self.header.tokens

    def document(self, number: int) -> Tensor:
        """Return the tokens of one document, int64; ConfigError if there is none of that number."""
        count = self.header.documents
        if not 0 <= number < count:
            raise ConfigError(f"{self.path} has no document {number}; give 0 to {count - 1:,}.")
        last = number + 1 == count
        end = len(self) if last else int(self.documents[number + 1])
        return self._ids(self.tokens[int(self.documents[number]) : end])

    def places(self, size: int, length: int, *, seed: int, step: int) -> Tensor:
        """Return where random windows start: a pure function of the arguments and the file.

        Every window of `length` tokens and one more to predict is equally likely, as in nanoGPT.
        `take` reads them.

        Shapes:
            int64 [size]
        """
        _at_least(1, size=size)
        _at_least(0, seed=seed, step=step)
        room = self._room(length)
        # The raw stream of a counter: frozen for good, and no two (seed, step) share one.
        key = np.array([seed % 2**64, step % 2**64], dtype=np.uint64)
        raw = np.random.Philox(key=key).random_raw(size)
        return torch.from_numpy((raw % np.uint64(room)).astype(np.int64))

    def take(self, places: Tensor, length: int) -> Tensor:
        """Return the windows that start at some places.

        Shapes:
            places: int64 [B] -> int64 [B, length + 1]
        """
        return self._ids(self.tokens[self._positions(places, length)])

    def segments(self, places: Tensor, length: int) -> Tensor:
        """Return the number of each token's document, for windows that start at some places.

        Shapes:
            places: int64 [B] -> int64 [B, length + 1]
        """
        positions = self._positions(places, length).astype(np.uint64)
        numbers = np.searchsorted(self.documents, positions, side="right") - 1
        return torch.from_numpy(numbers.astype(np.int64))

    def windows(self, length: int, size: int = 1) -> Iterator[Tensor]:
        """Yield all tokens in order, in windows that overlap by one token.

        Every token but the first is predicted exactly once: the last token of a window is the
        first that the next one reads.

        Shapes:
            int64 [size or fewer, length + 1], and at the end [1, t + 1] if t tokens are left over
        """
        _at_least(1, length=length, size=size)
        predicted = len(self) - 1
        if not predicted:
            raise ConfigError(f"{self.path} holds one token, of which none can be predicted.")
        count, left = divmod(predicted, length)
        for first in range(0, count, size):
            yield self.take(torch.arange(first, min(first + size, count)) * length, length)
        if left:
            yield self.take(torch.tensor([count * length]), left)

    def _room(self, length: int) -> int:
        _at_least(1, length=length)
        if len(self) <= length:
            raise ConfigError(
                f"length={length:,} needs {length + 1:,} tokens, and {self.path} holds "
                f"{len(self):,}; give a smaller length or more text."
            )
        return len(self) - length

    def _positions(self, places: Tensor, length: int) -> np.ndarray[Any, Any]:
        room = self._room(length)
        at = places.cpu().numpy()
        if at.size and not 0 <= at.min() <= at.max() < room:
            raise ConfigError(
                f"windows start at {at.min()} to {at.max()}; in {self.path}, one of {length + 1:,} "
                f"tokens starts at 0 to {room - 1:,}."
            )
        return at[:, None] + np.arange(length + 1)

    def _ids(self, tokens: np.ndarray[Any, Any]) -> Tensor:
        if tokens.size and tokens.max() >= self.header.vocabulary_size:
            raise DataError(
                f"{self.path} is damaged: it holds the id {tokens.max()}, and its vocabulary has "
                f"{self.header.vocabulary_size:,}. {REWRITE}"
            )
        return torch.from_numpy(tokens.astype(np.int64))


def _write(
    documents: Iterable[str],
    tokenizer: Tokenizer,
    tokens: BinaryIO,
    starts: BinaryIO,
    path: Path,
    console: Console | None,
) -> TokenHeader:
    before = [] if tokenizer.begin is None else [tokenizer.begin]
    after = [] if tokenizer.end is None else [tokenizer.end]
    dtype = dtype_for(tokenizer.vocabulary_size)
    write_npy_header(tokens, dtype, 0)
    write_npy_header(starts, STARTS, 0)
    total, num_documents, num_tokens = count_hint(documents), 0, 0
    with bar(console, f"encoding {path.name}", total, unit="documents") as advance:
        for ids in tokenizer.encode_many(_texts(documents)):
            row = np.array([*before, *ids, *after], dtype=np.int64)
            check_ids([int(row.min()), int(row.max())], tokenizer.vocabulary_size)
            starts.write(np.array(num_tokens, dtype=STARTS).tobytes())
            tokens.write(row.astype(dtype).tobytes())
            num_documents += 1
            num_tokens += len(row)
            advance(1, f"{num_tokens:,} tokens")
    if not num_tokens:
        raise DataError(f"there is no token for {path}; give documents that hold text.")
    write_npy_header(tokens, dtype, num_tokens)
    write_npy_header(starts, STARTS, num_documents)
    return TokenHeader(
        tokens=num_tokens,
        documents=num_documents,
        vocabulary_size=tokenizer.vocabulary_size,
        begin=tokenizer.begin,
        end=tokenizer.end,
        tokenizer=tokenizer.fingerprint,
    )


def _texts(documents: Iterable[str]) -> Iterator[str]:
    """Yield the texts that are not empty; a disk that cannot be read is not one to write on."""
    try:
        for text in documents:
            check_text(text)
            if text:
                yield text
    except OSError as error:
        raise DataError(f"the documents cannot be read ({error.strerror or error}).") from error


def _map(path: Path, header: TokenHeader, dtype: np.dtype[Any], count: int) -> np.ndarray[Any, Any]:
    try:
        if header.version == 1:
            array = np.memmap(path, dtype=dtype, mode="r")
        else:
            array = np.load(path, mmap_mode="r")
    # the header is a Python literal
    except (OSError, ValueError, EOFError, TokenError, SyntaxError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path} cannot be read ({reason}). {REWRITE}") from error
    if (array.shape, array.dtype) != ((count,), dtype):
        raise DataError(
            f"{path} holds {array.dtype} {list(array.shape)}; {dtype} [{count}] is due. {REWRITE}"
        )
    return array


def _check_starts(starts: np.ndarray[Any, Any], tokens: int, path: Path) -> None:
    rising = starts[0] == 0 and starts[-1] < tokens
    for first in range(0, len(starts) - 1, STARTS_CHECKED):
        part = starts[first : first + STARTS_CHECKED + 1]
        rising = rising and bool((part[1:] > part[:-1]).all())
    if not rising:
        raise DataError(f"{path} is damaged: documents do not follow each other. {REWRITE}")


def _at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if not is_whole(value, least):
            raise ConfigError(f"{name}={value!r} is not legal; give an integer >= {least}.")
