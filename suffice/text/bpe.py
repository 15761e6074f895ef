"""Byte-pair tokenizers: trained on the user's text, or read from files of GPT-2 and Llama."""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from suffice.data.files import DataFile
from suffice.data.files import read as find
from suffice.errors import ConfigError, DataError, StateError
from suffice.text import learner
from suffice.text import tokenizer as saved
from suffice.text.documents import counting, decoded, number_of, read_text
from suffice.text.tokenizer import built, check_ids, check_text, library, parsed, told

if TYPE_CHECKING:
    from rich.console import Console


END = "<|endoftext|>"
BYTES = 256
MOST = 1 << 20  # tokens; the library sets memory aside for what is asked
SEEN = 2  # times a pair must occur

# Finds modules where this process does; Ctrl-C is this process's to hear.
PROGRAM = (
    "import json, runpy, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "sys.path[:] = json.loads(sys.argv[1]); "
    "runpy.run_path(sys.argv[2])['main'](*sys.argv[3:])"
)


def learn(texts: Iterable[str], vocabulary_size: int, console: Console | None) -> str:
    """Return the description of a byte-level tokenizer in the library's format.

    While the library learns it hears nothing, neither Ctrl-C nor an error of the texts, and a
    thread cannot be ended. So it works in a process of its own, which is handed text by text.

    Args:
        texts: documents to learn from.
        vocabulary_size: how many ids there will be.
        console: where to show the progress; None shows nothing.

    Raises:
        ConfigError: if an argument is not legal, or the tokenizers library is not installed.
        DataError: if the texts do not hold that many pairs that occur often enough.
        StateError: if the process cannot be started or fails.
    """
    _check(vocabulary_size)
    library()
    total = number_of(texts)
    with _started(vocabulary_size) as process:
        _hand(process.stdin, texts, total, console)
        with console.status("learning pairs") if console else contextlib.nullcontext():
            description = process.stdout.read().decode()
        ended = process.wait()
    if ended or not description:
        raise StateError(
            f"the process that learns a vocabulary failed (code {ended}); what it said stands "
            "above."
        )
    found = len(json.loads(description)["model"]["vocab"])
    if found < vocabulary_size:
        raise DataError(
            f"the texts give {found:,} tokens, not {vocabulary_size:,}: no other pair occurs "
            f"{SEEN} times; ask for {found:,} or give more text."
        )
    return description


def _check(vocabulary_size: int) -> None:
    whole = isinstance(vocabulary_size, int) and not isinstance(vocabulary_size, bool)
    if not whole or not BYTES < vocabulary_size <= MOST:
        raise ConfigError(
            f"vocabulary_size={vocabulary_size!r} is not legal; give an integer of {BYTES + 1} "
            f"(the bytes and {END}) to {MOST:,}."
        )


@contextlib.contextmanager
def _started(vocabulary_size: int) -> Iterator[subprocess.Popen[bytes]]:
    """Give the process that learns; it does not outlive the block."""
    words = [
        sys.executable,
        "-c",
        PROGRAM,
        json.dumps([str(place) for place in sys.path]),
        learner.__file__,
    ]
    words += [str(vocabulary_size), str(SEEN), END]
    try:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as error:
        raise StateError(
            f"cannot start Python to learn a vocabulary ({error}); sys.executable is "
            f"{sys.executable!r}."
        ) from error
    try:
        yield process
    finally:
        process.kill()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        process.wait()


def _hand(pipe: IO[bytes], texts: Iterable[str], total: int, console: Console | None) -> None:
    """Put each text into a pipe and close it; stop where nobody reads."""
    with counting(console, "reading", total) as advance:
        characters = 0
        for text in texts:
            check_text(text)
            characters += len(text)
            if not _sent(pipe.write, learner.framed(text)):
                break
            advance(1, f"{characters:,} characters")
    _sent(pipe.close)


def _sent(act: Callable[..., object], *arguments: bytes) -> bool:
    """Return whether somebody still reads the pipe that is acted on."""
    try:
        act(*arguments)
    except BrokenPipeError:
        return False
    return True


TOGETHER = 1 << 20  # characters encoded at once, on all cores


class BPE:
    """A byte-pair tokenizer, run by the tokenizers library.

    Args:
        description: the content of a tokenizer.json in the library's format; what it says of
            truncation and padding is not used.
        begin: the token that stands before a document; None where nothing does.
        end: the token that stands after a document; None where nothing does.
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
        self._library = built(description, name)
        self._description = description
        self._names = {"begin": begin, "end": end}
        self.vocabulary_size: int = max(self._library.get_vocab().values(), default=-1) + 1
        self.begin = self._id(begin, name)
        self.end = self._id(end, name)
        facts = json.dumps([description, begin, end])
        self.fingerprint: str = hashlib.sha256(facts.encode()).hexdigest()

    def _id(self, token: str | None, name: object) -> int | None:
        found = None if token is None else self._library.token_to_id(token)
        if found is None and token is not None:
            raise DataError(f"{name} has no token {token!r:.40}; name one of its vocabulary.")
        return found

    @classmethod
    def train(
        cls, texts: Iterable[str], vocabulary_size: int, console: Console | None = None
    ) -> BPE:
        """Learn a byte-level vocabulary: 256 bytes, the end token, and the most frequent pairs.

        Any text can be encoded, and decoded to what it was. Texts are cut into words as GPT-2
        does. The same texts give the same tokenizer.

        Args:
            texts: documents to learn from; gone through once, never held together.
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
        room = TOGETHER
        for text in texts:
            batch.append(text)
            room -= len(text)
            if room <= 0:
                yield from self._encoded(batch)
                batch, room = [], TOGETHER
        yield from self._encoded(batch)

    def _encoded(self, texts: list[str]) -> Iterator[list[int]]:
        for text in texts:
            check_text(text)
        with told(self._name):
            found = self._library.encode_batch_fast(texts, add_special_tokens=False)
        for encoding in found:
            yield encoding.ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some ids; special tokens show as their names.

        Bytes that are no UTF-8, such as half a character, show as U+FFFD.

        Raises:
            ConfigError: if an id is not in the vocabulary.
        """
        check_ids(ids, self.vocabulary_size)
        with told(self._name):
            return self._library.decode(list(ids), skip_special_tokens=False)

    def save(self, folder: Path | str) -> None:
        """Write tokenizer.json and tokenizer_config.json, which transformers reads too.

        Raises:
            DataError: if the folder cannot be written.
        """
        saved.write(folder, self._description, **self._names)


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
        vocabulary = decoded(find(VOCABULARY, console=console), VOCABULARY.path)
        merges = decoded(find(MERGES, console=console), MERGES.path)
    else:
        vocabulary, merges = map(read_text, _files(Path(folder)))
    where = "GPT-2's vocabulary" if folder is None else folder
    tokenizer = BPE(_description(parsed(vocabulary, where), merges), end=END, name=where)
    for text, ids in KNOWN.items():
        found = tokenizer.encode(text)
        if found != ids:
            raise DataError(
                f"{where} is not GPT-2's: {text!r} gives {found}, not {ids}; give the published "
                "files, or load a tokenizer of your own by load_tokenizer."
            )
    return tokenizer


def _files(folder: Path) -> tuple[Path, Path]:
    for vocabulary, merges in NAMES:
        if (folder / vocabulary).is_file() and (folder / merges).is_file():
            return folder / vocabulary, folder / merges
    pairs = " nor ".join(" with ".join(pair) for pair in NAMES)
    raise DataError(f"{folder} holds neither {pairs}; give the folder of GPT-2's tokenizer.")


def _description(vocabulary: dict[str, int], merges: str) -> str:
    """Return the tokenizer in the format of the tokenizers library."""
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    # the first line is a version, the last is empty
    pairs = [line.split(" ") for line in merges.split("\n") if line and line[:9] != "#version:"]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    description = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": vocabulary.get(END), "content": END, **special, "special": True},
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": pairs},
    }
    return json.dumps(description)
