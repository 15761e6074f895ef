"""A part of a task that lies in tar archives of JPEG files, a folder for each class."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suffice.data.decoded import Pictures, Pixels, decoded
from suffice.data.find import DataFile, read
from suffice.data.members import members
from suffice.data.picture import decode
from suffice.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class Archives:
    """Where the pictures of one part are.

    Args:
        name: of the part, such as "cifar10_jpeg-train".
        files: the archives, in order.
        form: of a member's whole name; its first group is the class.
        classes: the name of each, in the order of their labels.
        count: pictures that there must be.
    """

    name: str
    files: tuple[DataFile, ...]
    form: re.Pattern[str]
    classes: tuple[str, ...]
    count: int


def read_part(part: Archives, side: int, *, console: Console | None = None) -> Pixels:
    """Return the pictures of a part, decoded now or before.

    Args:
        part: where they are.
        side: pixels of a picture; one of another size is resized.
        console: where progress is shown; None shows nothing.

    Raises:
        DataError: if a file is absent, truncated or altered, or pictures are missing.
    """
    key = [[file.path, file.sha256] for file in part.files]

    def make() -> Pictures:
        archives = [read(file, console=console) for file in part.files]
        labels = [part.classes.index(name) for name, _, _ in _pictures(part, archives)]
        if len(labels) != part.count:
            raise DataError(f"{part.name} holds {len(labels):,} pictures; {part.count:,} are due.")
        found = _pictures(part, archives)
        return Pictures(labels, (decode(content, side, name) for _, content, name in found))

    return decoded(part.name, key, side, make, console=console)


def _pictures(part: Archives, archives: list[bytes]) -> Iterator[tuple[str, bytes, str]]:
    """Yield the class, the content and the name of each picture."""
    for file, archive in zip(part.files, archives, strict=True):
        for match, content in members(archive, part.form, file.path):
            yield match[1], content, f"{file.path}: {match[0]}"
