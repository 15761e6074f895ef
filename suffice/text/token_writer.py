"""Writing a file of tokens: a stream of documents in, whole files or none out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from suffice.data.write import atomically
from suffice.errors import DataError
from suffice.text.progress import counting, number_of
from suffice.text.saved import ADVICE
from suffice.text.token_header import TokenHeader, dtype_for, header_at, starts_at, to_text
from suffice.text.tokenizer import Tokenizer, check_ids, check_text

if TYPE_CHECKING:
    from rich.console import Console


def write(
    path: Path, documents: Iterable[str], tokenizer: Tokenizer, console: Console | None
) -> None:
    """Write the tokens at `path`, the starts of the documents and the header.

    The header is taken away before the other two are replaced and comes back last: a reader never
    takes files that do not belong together.

    Raises:
        ConfigError: if documents is one text.
        DataError: if there is no token, the documents cannot be read or encoded, or the disk
            refuses.
    """
    total = number_of(documents)
    header = header_at(path)
    with (
        atomically(starts_at(path), advice=ADVICE) as starts_part,
        atomically(path, advice=ADVICE) as tokens_part,
    ):
        with (
            starts_part.open("wb") as starts,
            tokens_part.open("wb") as tokens,
            counting(console, f"encoding {path.name}", total) as advance,
        ):
            documents_written, tokens_written = _stream(
                _texts(documents), tokenizer, tokens, starts, advance
            )
        if not tokens_written:
            raise DataError(f"there is no token for {path}; give documents that hold text.")
        header.unlink(missing_ok=True)
    facts = TokenHeader(
        tokens=tokens_written,
        documents=documents_written,
        vocabulary_size=tokenizer.vocabulary_size,
        begin=tokenizer.begin,
        end=tokenizer.end,
        tokenizer=tokenizer.fingerprint,
    )
    with atomically(header, advice=ADVICE) as temporary:
        temporary.write_text(to_text(facts), encoding="ascii", newline="\n")


def _texts(documents: Iterable[str]) -> Iterator[str]:
    """Yield the texts that are not empty; a disk that cannot be read is not one to write on."""
    try:
        for text in documents:
            check_text(text)
            if text:
                yield text
    except OSError as error:
        raise DataError(f"the documents cannot be read ({error.strerror or error}).") from error


def _stream(
    texts: Iterator[str],
    tokenizer: Tokenizer,
    tokens: BinaryIO,
    starts: BinaryIO,
    advance: Callable[[int, str], None],
) -> tuple[int, int]:
    """Write each text's tokens and where they start; return how many documents and tokens."""
    before = [] if tokenizer.begin is None else [tokenizer.begin]
    after = [] if tokenizer.end is None else [tokenizer.end]
    dtype = dtype_for(tokenizer.vocabulary_size)
    documents = written = 0
    for ids in tokenizer.encode_many(texts):
        row = np.array([*before, *ids, *after], dtype=np.int64)
        check_ids([int(row.min()), int(row.max())], tokenizer.vocabulary_size)
        starts.write(np.array(written, dtype="<u8").tobytes())
        tokens.write(row.astype(dtype).tobytes())
        documents += 1
        written += len(row)
        advance(1, f"{written:,} tokens")
    return documents, written
