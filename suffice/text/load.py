"""Tokenizers by name or path."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from suffice.data.files import cache, locate
from suffice.errors import ConfigError, DataError
from suffice.text import tokenizer
from suffice.text.bpe import BPE, gpt2, llama
from suffice.text.characters import Characters, alphabet_of
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
        corpus: what it will read.
        vocabulary_size: of "bpe", and of it alone.
        console: where to show progress; None shows nothing.

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
