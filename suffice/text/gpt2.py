"""GPT-2's tokenizer, from the two files that OpenAI published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from suffice.data.find import DataFile
from suffice.data.find import read as find
from suffice.errors import DataError
from suffice.text.bpe import BPE
from suffice.text.learning import END
from suffice.text.plain import decoded, read_text
from suffice.text.saved import parsed

if TYPE_CHECKING:
    from rich.console import Console

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
