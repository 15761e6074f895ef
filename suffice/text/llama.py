"""Llama's tokenizers: a tokenizer.json, or the binary file of llama2.c."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path

from suffice.errors import DataError
from suffice.text.bpe import BPE
from suffice.text.documents import opened
from suffice.text.tokenizer import description_of, read_object, special_token

UNKNOWN, BEGIN, END = SPECIAL = ("<unk>", "<s>", "</s>")
FIRST = len(SPECIAL) + 256  # id of the first piece that is no byte

LARGEST = 1 << 24  # bytes of a file
LONGEST = 1 << 10  # bytes of a piece; every way to cut it in two is tried


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
        return BPE(_description(file), begin=BEGIN, end=END, name=file)
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


def _description(file: Path) -> str:
    """Return the tokenizer of a llama2.c file in the format of the tokenizers library.

    A text is encoded as sentencepiece does: a space before it, then characters (bytes where the
    vocabulary lacks one), then the pair whose piece has the highest score, again and again. Equal
    pieces made in two ways at once are the one difference: there the leftmost pair comes first in
    sentencepiece, here the pair of the smaller ids.

    Raises:
        DataError: if the file cannot be read, is cut short, or is of another format.
    """
    with opened(file) as stream:
        content = stream.read(LARGEST + 1)
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
    return json.dumps(_library_format(ids, _merges(ids, scores)))


def _pieces(content: bytes, file: Path) -> Iterator[tuple[str, float]]:
    """Yield the piece and the score of each id."""
    at = 4
    while at < len(content) or at == 4:
        head = content[at : at + 8]
        score, length = struct.unpack("<fi", head) if len(head) == 8 else (0.0, 0)
        piece = content[at + 8 : at + 8 + length] if 0 < length <= LONGEST else b""
        if not piece or len(piece) < length or not math.isfinite(score) or at > LARGEST:
            raise DataError(
                f"{file} is not a tokenizer file of llama2.c, or is cut short (at byte {at:,}); "
                "give it complete."
            )
        try:
            yield piece.decode(), score
        except UnicodeDecodeError as error:
            raise DataError(f"{file} holds a piece that is not UTF-8 (at byte {at:,}).") from error
        at += 8 + length


def _merges(ids: dict[str, int], scores: dict[str, float]) -> list[tuple[str, str]]:
    """Return the pairs to merge, the highest score of the piece they make first."""
    merges = []
    for piece in sorted(scores, key=lambda name: (-scores[name], ids[name])):
        pairs = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        known = [pair for pair in pairs if scores.keys() >= set(pair)]
        merges += sorted(known, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    return merges


def _library_format(ids: dict[str, int], merges: list[tuple[str, str]]) -> dict[str, object]:
    return description_of(
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
        model={
            "type": "BPE",
            "unk_token": UNKNOWN,
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": ids,
            "merges": merges,
        },
    )
