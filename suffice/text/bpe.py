"""Byte-pair tokenizers: trained on the user's text, or read from GPT-2's files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suffice.data.files import DataFile
from suffice.data.files import read as read_data
from suffice.errors import ConfigError, DataError
from suffice.progress import bar
from suffice.text import tokenizer as saved
from suffice.text.documents import decoded, number_of, read_text
from suffice.text.tokenizer import (
    build,
    check_ids,
    check_text,
    description_of,
    library,
    library_errors,
    parsed,
    special_token,
)

if TYPE_CHECKING:
    from rich.console import Console

END = "<|endoftext|>"
BYTES = 256
MOST = 1 << 20  # tokens; the library allocates memory for as many
MIN_FREQUENCY = 2  # times a pair must occur


AT_ONCE = 1 << 20  # characters encoded at once, on all cores


class BPE:
    """A byte-pair tokenizer, run by the tokenizers library.

    Args:
        description: the content of a tokenizer.json in the library's format; its truncation and
            padding are not used.
        begin: the token before each document; None where there is none.
        end: the token after each document; None where there is none.
        name: of the description's file, for errors.

    Raises:
        ConfigError: if the tokenizers library is not installed.
        DataError: if the description is not that of a byte-pair tokenizer, or lacks a token named.

    Example:
        >>> tokenizer = BPE.train(["low lower lowest"] * 2, 261)
        >>> tokenizer.encode("low"), tokenizer.decode(tokenizer.encode("slow"))
        ([258], 'slow')
    """

    def __init__(
        self,
        description: str,
        *,
        begin: str | None = None,
        end: str | None = None,
        name: object = "the description",
    ) -> None:
        self._name = name
        self._library = build(description, name)
        self._description = description
        self._special = {"begin": begin, "end": end}
        self.vocabulary_size: int = max(self._library.get_vocab().values(), default=-1) + 1
        self.begin = self._id(begin, name)
        self.end = self._id(end, name)
        facts = json.dumps([description, begin, end])
        self.fingerprint: str = hashlib.sha256(facts.encode()).hexdigest()

    def _id(self, token: str | None, name: object) -> int | None:
        id_ = None if token is None else self._library.token_to_id(token)
        if id_ is None and token is not None:
            raise DataError(f"{name} has no token {token!r:.40}; name one of its vocabulary.")
        return id_

    @classmethod
    def train(
        cls, texts: Iterable[str], vocabulary_size: int, console: Console | None = None
    ) -> BPE:
        """Learn a byte-level vocabulary: 256 bytes, the end token, and the most frequent pairs.

        Any text can be encoded, and decoded to what it was. Texts are cut into words as GPT-2
        does. The same texts give the same tokenizer.

        Args:
            texts: documents to learn from; read once, never held in memory together.
            vocabulary_size: how many ids there will be, 257 to 1,048,576.
            console: where to show the progress; None shows nothing.

        Raises:
            ConfigError: if vocabulary_size is not legal, or texts is one text, or the tokenizers
                library is not installed.
            DataError: if the texts do not hold that many pairs that occur twice.
        """
        return cls(learn(texts, vocabulary_size, console), end=END)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text.

        Raises:
            ConfigError: if it is not a text.
            DataError: if it holds half a surrogate pair.
        """
        return next(self.encode_many([text]))

    def encode_many(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """Yield the ids of each text, many texts at once on all cores.

        Raises:
            ConfigError, DataError: as `encode`.
        """
        batch: list[str] = []
        room = AT_ONCE
        for text in texts:
            batch.append(text)
            room -= len(text)
            if room <= 0:
                yield from self._encoded(batch)
                batch, room = [], AT_ONCE
        yield from self._encoded(batch)

    def _encoded(self, texts: list[str]) -> Iterator[list[int]]:
        for text in texts:
            check_text(text)
        with library_errors(self._name):
            encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        for encoding in encodings:
            yield encoding.ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some ids; special tokens show as their names.

        Bytes that are no UTF-8, such as half a character, show as U+FFFD.

        Raises:
            ConfigError: if an id is not in the vocabulary.
        """
        check_ids(ids, self.vocabulary_size)
        with library_errors(self._name):
            return self._library.decode(list(ids), skip_special_tokens=False)

    def save(self, folder: Path | str) -> None:
        """Write tokenizer.json and tokenizer_config.json, which transformers reads too.

        Raises:
            DataError: if the folder cannot be written.
        """
        saved.write(folder, self._description, **self._special)


def learn(texts: Iterable[str], vocabulary_size: int, console: Console | None) -> str:
    """Return the description of a byte-level tokenizer in the library's format.

    Ctrl-C is noticed between texts; while the library counts pairs, only when it is done.

    Args:
        texts: documents to learn from.
        vocabulary_size: how many ids there will be.
        console: where to show the progress; None shows nothing.

    Raises:
        ConfigError: if an argument is not legal, or the tokenizers library is not installed.
        DataError: if the texts do not hold that many pairs that occur often enough.
    """
    is_integer = isinstance(vocabulary_size, int) and not isinstance(vocabulary_size, bool)
    if not is_integer or not BYTES < vocabulary_size <= MOST:
        raise ConfigError(
            f"vocabulary_size={vocabulary_size!r} is not legal; give an integer of {BYTES + 1} "
            f"(the bytes and {END}) to {MOST:,}."
        )
    tokenizers = library()
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=MIN_FREQUENCY,
        show_progress=False,
        special_tokens=[END],
        initial_alphabet=sorted(byte_level.alphabet()),
    )
    tokenizer.train_from_iterator(_counted(texts, console), trainer)
    count = tokenizer.get_vocab_size()
    if count < vocabulary_size:
        raise DataError(
            f"the texts give {count:,} tokens, not {vocabulary_size:,}: no other pair occurs "
            f"{MIN_FREQUENCY} times; ask for {count:,} or give more text."
        )
    return tokenizer.to_str()


def _counted(texts: Iterable[str], console: Console | None) -> Iterator[str]:
    characters = 0
    with bar(console, "reading", number_of(texts), unit="documents") as advance:
        for text in texts:
            check_text(text)
            characters += len(text)
            advance(1, f"{characters:,} characters")
            yield text


_ADDRESS = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main"
VOCABULARY = DataFile(
    path="tokenizers/gpt2/encoder.json",
    sha256="196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    urls=(f"{_ADDRESS}/encoder.json",),
)
MERGES = DataFile(
    path="tokenizers/gpt2/vocab.bpe",
    sha256="1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    urls=(f"{_ADDRESS}/vocab.bpe",),
)
NAMES = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))  # OpenAI's, Hugging Face's

KNOWN = {
    "Hello, world!": [15496, 11, 995, 0],
    " attention is all you need": [3241, 318, 477, 345, 761],
    "\n\n\t1234 caf\u00e9": [628, 197, 1065, 2682, 40304],
}


def gpt2(folder: Path | str | None = None, *, console: Console | None = None) -> BPE:
    """Return GPT-2's tokenizer of 50,257 tokens; the last one ends a document.

    Args:
        folder: holds encoder.json and vocab.bpe, or the same files as vocab.json and merges.txt;
            None finds them at tokenizers/gpt2 below $SUFFICE_DATA or in the cache, or downloads
            them.
        console: where a download shows its progress; None shows nothing.

    Raises:
        ConfigError: if the tokenizers library is not installed.
        DataError: if a file is absent, truncated or altered, or encodes otherwise than GPT-2.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
    """
    if folder is None:
        vocabulary = decoded(read_data(VOCABULARY, console=console), VOCABULARY.path)
        merges = decoded(read_data(MERGES, console=console), MERGES.path)
    else:
        vocabulary, merges = map(read_text, _files(Path(folder)))
    where = "GPT-2's vocabulary" if folder is None else folder
    tokenizer = BPE(_gpt2_description(parsed(vocabulary, where), merges), end=END, name=where)
    for text, ids in KNOWN.items():
        encoded = tokenizer.encode(text)
        if encoded != ids:
            raise DataError(
                f"{where} is not GPT-2's: {text!r} gives {encoded}, not {ids}; give the published "
                "files, or load a tokenizer of your own by load_tokenizer."
            )
    return tokenizer


def _files(folder: Path) -> tuple[Path, Path]:
    for vocabulary, merges in NAMES:
        if (folder / vocabulary).is_file() and (folder / merges).is_file():
            return folder / vocabulary, folder / merges
    pairs = " nor ".join(" with ".join(pair) for pair in NAMES)
    raise DataError(f"{folder} holds neither {pairs}; give the folder of GPT-2's tokenizer.")


def _gpt2_description(vocabulary: dict[str, int], merges: str) -> str:
    # the first line is a version, the last is empty
    pairs = [line.split(" ") for line in merges.split("\n") if line and line[:9] != "#version:"]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    description = description_of(
        added_tokens=[special_token(vocabulary.get(END), END)],
        pre_tokenizer=byte_level,
        decoder=byte_level,
        model={"type": "BPE", "vocab": vocabulary, "merges": pairs},
    )
    return json.dumps(description)
