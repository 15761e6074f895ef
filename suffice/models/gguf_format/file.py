"""Reads and writes GGUF files: a header, metadata, a table of tensors, and their bytes.

Source: the specification of GGUF, version 3, of the ggml project. Numbers are little-endian.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from suffice.errors import CheckpointError, DataError
from suffice.models.gguf_format.blocks import KINDS, UNREAD, BlockKind
from suffice.utils.files import replacing

MAGIC, VERSIONS = b"GGUF", (2, 3)
ALIGNMENT = 32  # bytes, where the file names no other
MOST_ENTRIES, MOST_TENSORS = 1 << 16, 1 << 16
MOST_ITEMS = 1 << 20  # of all arrays in the metadata
LONGEST_TEXT, LONGEST_NAME = 1 << 26, 1 << 10  # bytes
WIDEST_ALIGNMENT = 1 << 20
MOST_AXES = 4
NUMBERS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
BOOL, TEXT, ARRAY = 7, 8, 9
Announced = tuple[str, tuple[int, ...], BlockKind, int]  # name, shape, kind, offset


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor in a file.

    Args:
        shape: outermost axis first, as torch has it; the file lists axes in the other order.
        kind: storage of its numbers.
        start: first byte, from the beginning of the file.
        nbytes: number of bytes.
    """

    shape: tuple[int, ...]
    kind: BlockKind
    start: int
    nbytes: int


@dataclass(frozen=True, kw_only=True, eq=False)
class GGUF:
    """An opened file, which is mapped rather than read.

    Args:
        path: path of the file.
        metadata: values by name: numbers, text, bool, or lists of one of these.
        tensors: tensors by name, in the order of the file.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]
    _bytes: mmap.mmap

    def blocks(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor, one row for each of its rows: uint8 [rows, bytes]."""
        one = self.tensors[name]
        flat = np.frombuffer(self._bytes, np.uint8, one.nbytes, one.start)
        return flat.reshape(math.prod(one.shape[:-1]), -1)


def open_gguf(path: Path | str) -> GGUF:
    """Open a file; every size in it is checked against the file before anything is allocated.

    Raises:
        CheckpointError: if the file cannot be read, is not a GGUF, is damaged, or holds a kind of
            tensor that is not known.
    """
    path = Path(path)
    try:
        with path.open("rb") as stream:
            content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file
        reason = getattr(error, "strerror", None) or "it is empty"
        raise CheckpointError(f"cannot read {path} ({reason}); give a .gguf file whole.") from error
    cursor = _Cursor(content, path)
    tensors, entries = cursor.head()
    metadata: dict[str, Any] = {}
    for _ in range(entries):
        name = cursor.text(LONGEST_NAME)
        if name in metadata:
            cursor.refuse(f"its metadata have {name!r:.80} twice")
        metadata[name] = cursor.value(cursor.number("<I"))
    table = [cursor.tensor() for _ in range(tensors)]
    found = cursor.placed(table, metadata.get("general.alignment", ALIGNMENT))
    return GGUF(path=path, metadata=metadata, tensors=found, _bytes=content)


class _Cursor:
    """Reads a file from its beginning, and never beyond its end."""

    def __init__(self, content: mmap.mmap, path: Path) -> None:
        self.content, self.path, self.at, self.items = content, path, 0, 0

    def refuse(self, why: str) -> NoReturn:
        raise CheckpointError(f"{self.path} is damaged: {why}; download it again.")

    def take(self, count: int) -> bytes:
        if count > len(self.content) - self.at:
            self.refuse(f"it ends within {count:,} bytes that it announces")
        self.at += count
        return self.content[self.at - count : self.at]

    def head(self) -> tuple[int, int]:
        """Return how many tensors and how many entries follow."""
        if self.take(4) != MAGIC:
            raise CheckpointError(f"{self.path} is not a GGUF file; give one that llama.cpp reads.")
        version = self.number("<I")
        if version not in VERSIONS:
            raise CheckpointError(
                f"{self.path} has version {version} of GGUF; versions 2 and 3, little-endian, are "
                "read."
            )
        tensors, entries = self.number("<Q"), self.number("<Q")
        if tensors > MOST_TENSORS or entries > MOST_ENTRIES:
            self.refuse(f"it announces {tensors:,} tensors and {entries:,} entries")
        return tensors, entries

    def placed(self, table: list[Announced], alignment: Any) -> dict[str, Tensor]:
        """Return the tensors of a table where they lie, behind the head and an alignment."""
        if type(alignment) is not int or not 1 <= alignment <= WIDEST_ALIGNMENT:
            self.refuse(f"its alignment is {alignment!r:.40}")
        start = self.at + -self.at % alignment
        found: dict[str, Tensor] = {}
        for name, shape, kind, offset in table:
            nbytes = kind.nbytes(math.prod(shape))
            if name in found:
                self.refuse(f"it has the tensor {name!r:.80} twice")
            if offset % alignment or start + offset + nbytes > len(self.content):
                self.refuse(f"the tensor {name!r:.80} does not lie within the file")
            found[name] = Tensor(shape=shape, kind=kind, start=start + offset, nbytes=nbytes)
        return found

    def number(self, form: str) -> Any:
        (value,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return value

    def text(self, longest: int = LONGEST_TEXT) -> str:
        count = self.number("<Q")
        if count > longest:
            self.refuse(f"a text of {count:,} bytes is longer than {longest:,}")
        try:
            return self.take(count).decode()
        except UnicodeDecodeError:
            self.refuse("a text in it is not UTF-8")

    def value(self, kind: int) -> Any:
        if kind == ARRAY:
            return self.array()
        if kind == TEXT:
            return self.text()
        if kind == BOOL:
            return self.number("<B") != 0
        if kind not in NUMBERS:
            self.refuse(f"its metadata have values of type {kind}")
        return self.number(NUMBERS[kind])

    def array(self) -> list[Any]:
        kind, count = self.number("<I"), self.number("<Q")
        self.items += count
        if self.items > MOST_ITEMS:
            self.refuse(f"its arrays have {self.items:,} values, more than {MOST_ITEMS:,}")
        if kind == ARRAY:
            self.refuse("an array in it holds arrays")
        if kind in NUMBERS:
            form = NUMBERS[kind]
            content = self.take(count * struct.calcsize(form))
            return np.frombuffer(content, form).tolist()
        return [self.value(kind) for _ in range(count)]

    def tensor(self) -> Announced:
        name = self.text(LONGEST_NAME)
        axes = self.number("<I")
        if not 1 <= axes <= MOST_AXES:
            self.refuse(f"the tensor {name!r:.80} has {axes} axes")
        shape = tuple(self.number("<Q") for _ in range(axes))[::-1]
        number, offset = self.number("<I"), self.number("<Q")
        kind = next((one for one in KINDS.values() if one.number == number), None)
        if kind is None:
            raise CheckpointError(
                f"{self.path}: the tensor {name!r:.80} is of type {UNREAD.get(number, number)}, "
                f"which is not read; give a file in one of {', '.join(KINDS)}."
            )
        limit = 8 * len(self.content)  # no kind has less than two bits for a number
        if min(shape) < 1 or math.prod(shape) > limit or shape[-1] % kind.size:
            self.refuse(f"the tensor {name!r:.80} has the shape {list(shape)}")
        return name, shape, kind, offset


@dataclass(frozen=True, kw_only=True, eq=False)
class Stored:
    """A tensor to write: its shape, outermost axis first, and its bytes in a kind."""

    shape: tuple[int, ...]
    kind: BlockKind
    blocks: NDArray[np.uint8]


def write_gguf(
    path: Path | str, metadata: Mapping[str, Any], tensors: Iterable[tuple[str, Stored]]
) -> None:
    """Write a file, which appears whole or not at all.

    Args:
        path: path of the file; one there is replaced.
        metadata: values by name: bool, int (32 bits), float (32 bits), str, or lists of them.
        tensors: names, and what they hold.

    Raises:
        DataError: if the file cannot be written.
    """
    head = [_entry(name, value) for name, value in metadata.items()]
    table, bodies, offset = [], [], 0
    for name, one in tensors:
        axes = struct.pack(f"<I{len(one.shape)}Q", len(one.shape), *one.shape[::-1])
        table.append(_text(name) + axes + struct.pack("<IQ", one.kind.number, offset))
        bodies.append(one.blocks)
        offset += one.blocks.nbytes + -one.blocks.nbytes % ALIGNMENT
    counts = struct.pack("<4sIQQ", MAGIC, VERSIONS[-1], len(table), len(head))
    content = b"".join([counts, *head, *table])
    try:
        with replacing(Path(path)) as temporary, temporary.open("wb") as stream:
            stream.write(content + bytes(-len(content) % ALIGNMENT))
            for body in bodies:
                stream.write(body.tobytes())
                stream.write(bytes(-body.nbytes % ALIGNMENT))
    except OSError as error:
        raise DataError(
            f"cannot write {path} ({error.strerror or error}); free space, or give another name."
        ) from error


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _entry(name: str, value: Any) -> bytes:
    kind, content = _value(value)
    return _text(name) + struct.pack("<I", kind) + content


def _value(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return BOOL, struct.pack("<B", value)
    if isinstance(value, int):
        return (5, struct.pack("<i", value)) if value < 0 else (4, struct.pack("<I", value))
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return TEXT, _text(value)
    if value and all(isinstance(one, int) and not isinstance(one, bool) for one in value):
        return ARRAY, struct.pack("<IQ", 5, len(value)) + np.array(value, "<i4").tobytes()
    kinds = [_value(one) for one in value]
    kind = kinds[0][0] if kinds else TEXT
    return ARRAY, struct.pack("<IQ", kind, len(kinds)) + b"".join(content for _, content in kinds)
