"""Reading back a tokenizer that was saved."""

from __future__ import annotations

from pathlib import Path

from suffice.text import saved
from suffice.text.bpe import BPE
from suffice.text.characters import Characters, alphabet
from suffice.text.tokenizer import Tokenizer


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
    text, description, begin, end = saved.read(folder)
    characters = alphabet(description)
    if characters is not None:
        return Characters(characters)
    return BPE(text, begin=begin, end=end, name=Path(folder) / saved.DESCRIPTION)
