"""Tokenizers by name, and documents packed into rows of tokens.

Letters: N rows, T tokens of a row.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from suffice.data import TASKS, Dataset, Split
from suffice.data.dataset import check_counts, draw_rows
from suffice.data.files import cache, locate
from suffice.errors import ConfigError, DataError
from suffice.text import tokenizer
from suffice.text.bpe import BPE, gpt2, llama
from suffice.text.characters import Characters, alphabet_of
from suffice.text.corpus import corpus as corpus_of
from suffice.text.documents import Corpus
from suffice.text.tokenizer import Tokenizer
from suffice.text.words import Words, words_in

if TYPE_CHECKING:
    from rich.console import Console


def load_tokenizer(folder: Path | str) -> Tokenizer:
    """Return the tokenizer that `save(folder)` wrote, whichever it was.

    Args:
        folder: holds tokenizer.json and tokenizer_config.json.

    Raises:
        ConfigError: if it is a byte-pair tokenizer and the tokenizers library is not installed.
        DataError: if a file is absent, or is not what a tokenizer of this library writes.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Characters.of("hello").save(folder)
        ...     load_tokenizer(folder).encode("hole")
        [1, 3, 2, 0]
    """
    text, description, begin, end = tokenizer.read(folder)
    characters = alphabet_of(description)
    if characters is not None:
        return Characters(characters)
    if (saved := words_in(description)) is not None:
        return Words(*saved)
    return BPE(text, begin=begin, end=end, name=Path(folder) / tokenizer.DESCRIPTION)


LLAMA = ("tokenizers/llama/tokenizer.json", "tokenizers/llama/tokenizer.bin")


def choose_tokenizer(
    name: str,
    corpus: Corpus,
    *,
    vocabulary_size: int | None = None,
    console: Console | None = None,
) -> Tokenizer:
    """Return a tokenizer made for a corpus, or one that exists.

    Args:
        name: "characters", all that occur in the corpus; "bpe", byte pairs learned from its
            training part; "gpt2"; "llama", found below $SUFFICE_DATA or in the cache; or a path:
            the folder of a saved tokenizer, or a file of a Llama model.
        corpus: corpus that it will read.
        vocabulary_size: vocabulary size, for "bpe" only.
        console: display of the progress; None disables it.

    Raises:
        ConfigError: for a name that is neither known nor a path, or a vocabulary_size that is
            missing or of no use.
        DataError: if a file is absent or damaged.

    Example:
        >>> from suffice.text import Corpus, Documents
        >>> parts = {n: Documents(name=n, read=lambda: ["abc"]) for n in ("train", "validation")}
        >>> choose_tokenizer("characters", Corpus(name="c", source="", **parts)).vocabulary_size
        3
    """
    if (name == "bpe") != (vocabulary_size is not None):
        raise ConfigError(
            f"tokenizer {name!r} with vocabulary_size={vocabulary_size}; give one to 'bpe', which "
            "learns that many, and none to others."
        )
    if name == "characters":
        return Characters.of(text for part in (corpus.train, corpus.validation) for text in part)
    if name == "bpe":
        return BPE.train(corpus.train, vocabulary_size, console)
    if name == "gpt2":
        return gpt2(console=console)
    path = Path(name)
    if name == "llama":
        located = next(filter(None, map(locate, LLAMA)), None)
        if located is None:
            raise DataError(
                f"there is no Llama tokenizer at {cache() / LLAMA[0]}; put the tokenizer.json of a "
                "Llama model there, or name its file or another tokenizer."
            )
        path = located
    if path.is_dir():
        return load_tokenizer(path)
    if path.is_file():
        return llama(path)
    raise ConfigError(
        f"there is no tokenizer {name!r}; give characters, bpe, gpt2, llama, the folder of a saved "
        "tokenizer or a file of a Llama model."
    )


def pack(documents: Iterable[Sequence[int]], length: int) -> tuple[Tensor, Tensor]:
    """Put documents into as few rows as a greedy rule finds; every token is in exactly one row.

    A document longer than a row is cut after every `length` tokens, and each piece is from then on
    a separate document: it does not see the pieces before it. Pieces are placed longest first,
    each into the row with the least room that holds it. What is left of a row is padding.

    Args:
        documents: token ids of each; empty ones are skipped.
        length: tokens of a row.

    Returns:
        The tokens and the segments. Within a row the documents have the numbers 1, 2, ... from
        left to right; padding has the token 0 and the segment 0, so `segments > 0` is `valid`.

    Shapes:
        int64 [N, T], int64 [N, T]

    Raises:
        ConfigError: if length is not an integer >= 1, or a document is not a sequence of ids.
        DataError: if there is no token.

    Example:
        >>> tokens, segments = pack([[1, 2, 3], [4], [5, 6, 7, 8, 9]], 4)
        >>> tokens.tolist(), segments.tolist()
        ([[5, 6, 7, 8], [1, 2, 3, 4], [9, 0, 0, 0]], [[1, 1, 1, 1], [1, 1, 1, 2], [1, 0, 0, 0]])

    Source: Ding et al. 2024, arXiv:2404.10830, best-fit packing. Differs: none.
    """
    check_counts("pack", length=length)
    pieces = [
        row[at : at + length] for row in map(_row, documents) for at in range(0, len(row), length)
    ]
    if not pieces:
        raise DataError("there is no token to pack; give documents that hold some.")
    rows = _rows([len(piece) for piece in pieces], length)
    tokens = np.zeros((len(rows), length), dtype=np.int64)
    segments = np.zeros((len(rows), length), dtype=np.int64)
    for number, row in enumerate(rows):
        at = 0
        for segment, piece in enumerate((pieces[index] for index in row), 1):
            tokens[number, at : at + len(piece)] = piece
            segments[number, at : at + len(piece)] = segment
            at += len(piece)
    return torch.from_numpy(tokens), torch.from_numpy(segments)


def _row(document: Sequence[int]) -> np.ndarray:
    row = np.asarray(document)
    if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
        raise ConfigError(
            f"a document is {document!r:.60}, which is not a sequence of token ids; encode it "
            "first."
        )
    return row


def _rows(sizes: Sequence[int], length: int) -> list[list[int]]:
    rows: list[list[int]] = []
    with_room: list[list[int]] = [[] for _ in range(length + 1)]  # rows by the room they have
    rooms: list[int] = []  # the rooms there are, ascending
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        size = sizes[index]
        place = bisect_left(rooms, size)
        if place == len(rooms):
            row, room = len(rows), length
            rows.append([])
        else:
            room = rooms[place]
            row = with_room[room].pop()
            if not with_room[room]:
                del rooms[place]
        rows[row].append(index)
        left = room - size
        if left and not with_room[left]:
            insort(rooms, left)
        if left:
            with_room[left].append(row)
    return rows


VALIDATION = 10  # training rows per validation row


def text(
    *,
    corpus: str = "tinyshakespeare",
    tokenizer: str = "characters",
    vocabulary_size: int | None = None,
    length: int = 64,
    rows: int | None = None,
    test_rows: int | None = None,
    console: Console | None = None,
) -> Dataset:
    """Cut a corpus into rows; the label of each token is the next one.

    The documents of a part follow each other, with the tokenizer's end between them where it has
    one, and are cut every `length` tokens; a rest at the end is dropped. The last tenth of the
    rows of the training part is for validation. The test is that of the corpus, or where it has
    none, its validation part, which nothing else reads.

    Args:
        corpus: name or path of the corpus, see `suffice.text.corpus`.
        tokenizer: see `choose_tokenizer`.
        vocabulary_size: vocabulary size, for the tokenizer "bpe" only.
        length: tokens of a row, >= 1.
        rows: training rows that are kept at most, drawn by a fixed permutation; None takes all.
        test_rows: the same for the test, and for validation.
        console: display of a download's progress; None disables it.

    Shapes:
        inputs, labels: int64 [N, length]

    Raises:
        ConfigError: if an option is not legal.
        DataError: if the corpus is absent or too short.
    """
    check_counts("text", length=length, rows=rows, test_rows=test_rows)
    documents = corpus_of(corpus, console=console)
    encoder = choose_tokenizer(
        tokenizer, documents, vocabulary_size=vocabulary_size, console=console
    )
    learned = _split(documents.train, encoder, length, corpus)
    count = len(learned) // VALIDATION
    if not count:
        raise DataError(
            f"text: {corpus} has {len(learned)} training rows of {length} tokens, of which a tenth "
            "is for validation; give a longer corpus or a smaller length."
        )
    first = len(learned) - count
    test = _split(documents.test or documents.validation, encoder, length, corpus)
    return Dataset(
        name="text",
        title=f"{documents.name} in rows of {length} tokens",
        source=documents.source,
        train=learned.take(draw_rows(first, rows)),
        validation=learned.take(first + draw_rows(count, test_rows)),
        test=test.take(draw_rows(len(test), test_rows)),
        num_classes=encoder.vocabulary_size,
        tokenizer=encoder,
        scores=("perplexity",),
    )


def _split(documents: Iterable[str], tokenizer: Tokenizer, length: int, corpus: str) -> Split:
    end = [] if tokenizer.end is None else [tokenizer.end]
    joined = chain.from_iterable([*ids, *end] for ids in tokenizer.encode_many(documents))
    ids: Tensor = torch.tensor(list(joined))
    count = (len(ids) - 1) // length
    if count < 1:
        raise DataError(
            f"text: a part of {corpus} has {len(ids)} tokens, too few for a row of {length} and "
            "the token after it; give a longer corpus or a smaller length."
        )
    inputs, labels = (ids[at : at + count * length].view(count, length) for at in (0, 1))
    return Split(inputs.clone(), labels.clone())


TASKS["text"] = text
