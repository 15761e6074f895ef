"""Byte-pair tokenizers: trained on the user's text, GPT-2's, and Llama's."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suffice.data.files import DataFile
from suffice.data.files import read as read_data
from suffice.errors import ConfigError, DataError
from suffice.text.documents import count_hint, decode_text, open_file, read_text
from suffice.text.tokenizer import (
    Tokenizer,
    build,
    check_ids,
    check_text,
    description_of,
    library_errors,
    parse_object,
    read_object,
    row_options,
    rows_of,
    special_token,
)
from suffice.utils.progress import bar
from suffice.utils.records import is_whole

if TYPE_CHECKING:
    from rich.console import Console

END = "<|endoftext|>"
BYTES = 256
MAX_VOCABULARY = 1 << 20  # tokens; the library allocates memory for all of them
MIN_FREQUENCY = 2  # times a pair must occur
BATCH_CHARACTERS = 1 << 20  # encoded at once, on all cores


class BPE(Tokenizer):
    """A byte-pair tokenizer, run by the tokenizers library.

    Args:
        description: the content of a tokenizer.json in the library's format; its truncation and
            padding are not used.
        begin: the token before each document; None where there is none.
        end: the token after each document; None where there is none.

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
        self._name, self._library = name, build(description, name)
        size = max(self._library.get_vocab().values(), default=-1) + 1
        facts = json.dumps([description, begin, end])
        super().__init__(description, size, facts, bos_token=begin, eos_token=end)
        self.begin, self.end = self._id(begin), self._id(end)

    @property
    def special(self) -> dict[str, int]:
        """The ids of special tokens by name."""
        added = self._library.get_added_tokens_decoder()
        return {token.content: id_ for id_, token in added.items() if token.special}

    @property
    def around(self) -> tuple[list[int], list[int]]:
        """The ids of special tokens that the description puts before and after a text."""
        encoding = self._library.encode("a")
        marks, ids = encoding.special_tokens_mask, encoding.ids
        return ids[: (*marks, 0).index(0)], ids[len(ids) - (*marks[::-1], 0).index(0) :]

    def check_case(self) -> None:
        """Refuse texts made lower case for a vocabulary of capitals, or capitals that it lacks."""
        words = sorted(filter(re.compile("[A-Za-z]{3,}").fullmatch, self._library.get_vocab()))
        capitals = [word for word in words if word.istitle()]
        if capitals and all(self.encode(word) == self.encode(word.lower()) for word in capitals):
            raise DataError(
                f"{self._name} makes texts lower case, and its vocabulary has capitals, such as "
                f"{capitals[0]!r:.40}; set the normalizer of its cased model."
            )
        unknown = getattr(self._library.model, "unk_token", None)
        marks = {self._library.token_to_id(unknown)} if unknown else set()
        if words and not capitals and marks & {*self.encode(words[0].title())}:
            raise DataError(
                f"{self._name} keeps capitals, and its vocabulary has none, so "
                f"{words[0].title()!r:.40} is unknown; set the normalizer of its uncased model."
            )

    def _id(self, token: str | None) -> int | None:
        if token is None:
            return None
        id_ = self._library.token_to_id(token)
        if id_ is None:
            raise DataError(f"{self._name} has no token {token!r:.40}; name one of its vocabulary.")
        return id_

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocabulary_size: int,
        console: Console | None = None,
        *,
        at_most: bool = False,
    ) -> BPE:
        """Learn a byte-level vocabulary: 256 bytes, the end token, and the most frequent pairs.

        Any text can be encoded, and decoded to what it was. Texts are cut into words as GPT-2
        does. The same texts give the same tokenizer. Ctrl-C is noticed between texts; while the
        library counts pairs, only when it is done.

        Args:
            texts: documents to learn from; read once, never held in memory together.
            vocabulary_size: size of the vocabulary, 257 to 1,048,576.
            at_most: whether texts that hold fewer pairs give a smaller vocabulary.
        """
        return cls(_learn(texts, vocabulary_size, console, at_most=at_most), end=END)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; DataError if it holds half a surrogate pair."""
        return next(self.encode_many([text]))

    def encode_many(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """Yield the ids of each text, many texts at once on all cores; errors as `encode`."""
        batch: list[str] = []
        room = BATCH_CHARACTERS
        for text in texts:
            batch.append(text)
            room -= len(text)
            if room <= 0:
                yield from self._encoded(batch)
                batch, room = [], BATCH_CHARACTERS
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

        Bytes that are not UTF-8, such as half a character, show as U+FFFD. An id that is not in the
        vocabulary is a ConfigError.
        """
        check_ids(ids, self.vocabulary_size)
        with library_errors(self._name):
            return self._library.decode(list(ids), skip_special_tokens=False)

    def for_rows(self, length: int, start: int) -> BPE:
        """Return the same tokenizer, whose files give transformers a classifier's rows.

        See `suffice.text.tokenizer.rows_of`; padding is the start token, too.
        """
        token = self._library.id_to_token(start)
        marks = {"start": start, "token": token, "pad": start, "pad_token": token}
        described = rows_of(parse_object(self.description, self._name), length, **marks)
        begin, end = (self._options[name] for name in ("bos_token", "eos_token"))
        rows = BPE(json.dumps(described), begin=begin, end=end, name=self._name)
        rows._options |= row_options(length, token)
        return rows


def _learn(
    texts: Iterable[str], vocabulary_size: int, console: Console | None, *, at_most: bool
) -> str:
    if not is_whole(vocabulary_size, least=BYTES + 1) or vocabulary_size > MAX_VOCABULARY:
        raise ConfigError(
            f"vocabulary_size={vocabulary_size!r} is not legal; give an integer of {BYTES + 1} "
            f"(the bytes and {END}) to {MAX_VOCABULARY:,}."
        )
    import tokenizers

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
    if count < vocabulary_size and not at_most:
        raise DataError(
            f"the texts give {count:,} tokens, not {vocabulary_size:,}: no other pair occurs "
            f"{MIN_FREQUENCY} times; ask for {count:,} or give more text."
        )
    return tokenizer.to_str()


def _counted(texts: Iterable[str], console: Console | None) -> Iterator[str]:
    characters = 0
    with bar(console, "reading", count_hint(texts), unit="documents") as advance:
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

KNOWN_TOKENIZERS = {
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

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
    """
    if folder is None:
        vocabulary = decode_text(read_data(VOCABULARY, console=console), VOCABULARY.path)
        merges = decode_text(read_data(MERGES, console=console), MERGES.path)
    else:
        vocabulary, merges = map(read_text, _files(Path(folder)))
    where = "GPT-2's vocabulary" if folder is None else folder
    tokenizer = BPE(_gpt2_description(parse_object(vocabulary, where), merges), end=END, name=where)
    for text, ids in KNOWN_TOKENIZERS.items():
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


# Llama's
UNKNOWN, BEGIN, LLAMA_END = SPECIAL = ("<unk>", "<s>", "</s>")
FIRST = len(SPECIAL) + 256  # id of the first piece that is not a byte
MAX_FILE_BYTES = 1 << 24  # bytes of a file
MAX_PIECE_BYTES = 1 << 10  # bytes of a piece; every way to cut it in two is tried
# The tokens around a document: Llama 1 and 2, Llama 3.
AROUND = ((BEGIN, LLAMA_END), ("<|begin_of_text|>", "<|end_of_text|>"))


def llama(file: Path | str) -> BPE:
    """Return the tokenizer in a file of a Llama model; it has a begin and an end token.

    Args:
        file: a tokenizer.json, or a tokenizer.bin of llama2.c such as tok512.bin.
    """
    file = Path(file)
    if file.suffix == ".bin":
        return BPE(_llama2_c_description(file), begin=BEGIN, end=LLAMA_END, name=file)
    if file.suffix != ".json":
        raise DataError(
            f"{file} is not a tokenizer.json nor a .bin of llama2.c; convert a tokenizer.model "
            "to one of them."
        )
    text, stored = read_object(file)
    added = stored.get("added_tokens")
    rows = added if isinstance(added, list) else []
    names = [row.get("content") for row in rows if isinstance(row, dict)]
    pair = next((pair for pair in AROUND if all(name in names for name in pair)), None)
    if pair is None:
        wanted = " nor ".join(" and ".join(pair) for pair in AROUND)
        raise DataError(f"{file} adds neither {wanted}; give the tokenizer of a Llama model.")
    return BPE(text, begin=pair[0], end=pair[1], name=file)


def _llama2_c_description(file: Path) -> str:
    """Return the tokenizer of a llama2.c file in the format of the tokenizers library.

    A text is encoded as sentencepiece does: a space before it, then characters (bytes where the
    vocabulary lacks one), then the pair whose piece has the highest score, again and again. Equal
    pieces made in two ways at once are the one difference: there the leftmost pair comes first in
    sentencepiece, here the pair of the smaller ids.
    """
    with open_file(file) as stream:
        content = stream.read(MAX_FILE_BYTES + 1)
    pieces = list(_pieces(content, file))
    specials = [piece.strip() for piece, _ in pieces[: len(SPECIAL)]]
    bytes_ = [piece for piece, _ in pieces[len(SPECIAL) : FIRST]]
    if specials != list(SPECIAL) or bytes_ != [f"<0x{byte:02X}>" for byte in range(256)]:
        raise DataError(
            f"{file} does not begin with {', '.join(SPECIAL)} and the 256 bytes, as a tokenizer "
            "file of llama2.c does; give such a file."
        )
    names = [*SPECIAL, *(piece for piece, _ in pieces[len(SPECIAL) :])]
    ids = {name: number for number, name in enumerate(names)}
    if len(ids) < len(names):
        raise DataError(f"{file} holds a piece twice; give the file complete.")
    scores = {name: pieces[number][1] for name, number in ids.items() if number >= FIRST}
    description = description_of(
        added_tokens=[special_token(ids[name], name) for name in SPECIAL],
        normalizer={"type": "Prepend", "prepend": " "},
        decoder={
            "type": "Sequence",
            "decoders": [
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        model=model_of_pieces(ids, scores, UNKNOWN),
    )
    return json.dumps(description)


def _pieces(content: bytes, file: Path) -> Iterator[tuple[str, float]]:
    at = 4
    while at < len(content) or at == 4:
        head = content[at : at + 8]
        score, length = struct.unpack("<fi", head) if len(head) == 8 else (0.0, 0)
        piece = content[at + 8 : at + 8 + length] if 0 < length <= MAX_PIECE_BYTES else b""
        if not piece or len(piece) < length or not math.isfinite(score) or at > MAX_FILE_BYTES:
            raise DataError(
                f"{file} is not a tokenizer file of llama2.c, or is cut short (at byte {at:,}); "
                "give it complete."
            )
        try:
            yield piece.decode(), score
        except UnicodeDecodeError as error:
            raise DataError(f"{file} holds a piece that is not UTF-8 (at byte {at:,}).") from error
        at += 8 + length


def model_of_pieces(
    ids: dict[str, int], scores: dict[str, float], unknown: str | None
) -> dict[str, Any]:
    """Return sentencepiece's byte pairs: merged first is the pair whose piece scores highest."""
    merges = []
    for piece in sorted(scores, key=lambda name: (-scores[name], ids[name])):
        pairs = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        known = [pair for pair in pairs if scores.keys() >= set(pair)]
        merges += sorted(known, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    model = {"type": "BPE", "unk_token": unknown, "fuse_unk": True, "byte_fallback": True}
    return model | {"vocab": ids, "merges": merges}
