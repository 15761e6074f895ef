"""The official archive of IMDB reviews, and its conversion to two files of JSON lines."""

from __future__ import annotations

import hashlib
import json
import lzma
import re
from pathlib import Path

from suffice.data.find import record
from suffice.data.members import members
from suffice.data.write import atomically
from suffice.errors import DataError

REVIEW = re.compile(r"aclImdb/(train|test)/(pos|neg)/(\d{1,5})_(\d{1,2})\.txt")
LABELS = {"neg": 0, "pos": 1}
PRESET = 1  # of xz: the file is written once on the user's machine, a good deal faster than 6


def convert(archive: bytes, folder: Path) -> None:
    """Write `train.jsonl.xz` and `test.jsonl.xz` from the archive aclImdb_v1.tar.gz.

    Each line is {"id", "label", "rating", "text"}; negative reviews (label 0) come first, then by
    id. The sha256 of each file's content is recorded beside it.

    Args:
        archive: the bytes of the .tar.gz.
        folder: where to write.

    Raises:
        DataError: if the archive cannot be read, or the files cannot be written.
    """
    for part, rows in _reviews(archive).items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        content = lines.encode()
        target = folder / f"{part}.jsonl.xz"
        # The record first: a file without one would be refused for good.
        with atomically(record(target)) as temporary:
            temporary.write_text(hashlib.sha256(content).hexdigest() + "\n", encoding="ascii")
        with atomically(target) as temporary:
            temporary.write_bytes(lzma.compress(content, preset=PRESET))


def _reviews(archive: bytes) -> dict[str, list[dict[str, int | str]]]:
    """Return the rows of each part, sorted by label and id."""
    parts: dict[str, list[dict[str, int | str]]] = {"train": [], "test": []}
    name = "the archive of IMDB reviews"
    try:
        for match, text in members(archive, REVIEW, name):
            part, label, number, rating = match.groups()
            row = {"id": int(number), "label": LABELS[label], "rating": int(rating)}
            parts[part].append({**row, "text": text.decode()})
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is truncated or damaged ({error}).") from error
    for rows in parts.values():
        rows.sort(key=lambda row: (row["label"], row["id"]))
    return parts
