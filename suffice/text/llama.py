"""Llama's tokenizers: a tokenizer.json, or the binary file of llama2.c."""

from __future__ import annotations

from pathlib import Path

from suffice.errors import DataError
from suffice.text.bpe import BPE
from suffice.text.llama2c import BEGIN, END, description
from suffice.text.saved import read_object

# The tokens around a document: Llama 1 and 2, Llama 3.
AROUND = ((BEGIN, END), ("<|begin_of_text|>", "<|end_of_text|>"))


def llama(file: Path | str) -> BPE:
    """Return the tokenizer in a file of a Llama model; it has a begin and an end token.

    Args:
        file: a tokenizer.json, or a tokenizer.bin of llama2.c such as tok512.bin.

    Raises:
        ConfigError: if the tokenizers library is not installed.
        DataError: if the file is absent, of another format, or not that of a Llama tokenizer.
    """
    file = Path(file)
    if file.suffix == ".bin":
        return BPE(description(file), begin=BEGIN, end=END, name=file)
    if file.suffix != ".json":
        raise DataError(
            f"{file} is not a tokenizer.json nor a .bin of llama2.c; convert a tokenizer.model "
            "to one of them."
        )
    text, found = read_object(file)
    added = found.get("added_tokens")
    rows = [row for row in added if isinstance(row, dict)] if isinstance(added, list) else []
    names = [row.get("content") for row in rows]
    pair = next((pair for pair in AROUND if all(name in names for name in pair)), None)
    if pair is None:
        wanted = " nor ".join(" and ".join(pair) for pair in AROUND)
        raise DataError(f"{file} adds neither {wanted}; give the tokenizer of a Llama model.")
    return BPE(text, begin=pair[0], end=pair[1], name=file)
