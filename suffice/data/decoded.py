"""Decoded pixels, kept in the cache so that pictures are decoded once.

A file of safetensors holds them, labels first, pixels after; its sha256 stands beside it. It is
mapped into memory: a run that takes some rows reads those only, once the file was checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from torch import Tensor

from suffice.data.find import cache, record
from suffice.data.write import atomically
from suffice.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console

FOLDER = "decoded"  # below the cache
CHUNK = 1 << 22  # bytes


class Pixels(NamedTuple):
    """Pictures with their labels.

    Args:
        images: uint8 [N, 3, S, S].
        labels: int64 [N].
    """

    images: Tensor
    labels: Tensor


class Pictures(NamedTuple):
    """Pictures that are still to be decoded.

    Args:
        labels: one for each.
        pixels: uint8 [3, S, S] of each, in the same order; decoded as they are asked for.
    """

    labels: list[int]
    pixels: Iterable[np.ndarray]


def decoded(
    name: str,
    key: object,
    side: int,
    make: Callable[[], Pictures],
    *,
    console: Console | None = None,
) -> Pixels:
    """Return pictures from the cache; decode them and keep them when it has none.

    Args:
        name: what they are called there, such as "tiny_imagenet_100-train".
        key: plain values that tell these pictures from all others of that name: the digests of
            their sources, the sizes.
        side: of the square pictures, pixels.
        make: gives the pictures when they are not there yet.
        console: where the progress is shown; None shows nothing.

    Raises:
        DataError: if the pictures cannot be decoded or written, or what was kept is damaged.
    """
    told = json.dumps([key, side], sort_keys=True).encode()
    path = cache() / FOLDER / f"{name}-{hashlib.sha256(told).hexdigest()[:16]}.safetensors"
    if not path.exists():
        _write(path, make(), side, name, console)
    return _read(path)


def _write(path: Path, pictures: Pictures, side: int, name: str, console: Console | None) -> None:
    """Write the pictures as they are decoded, and the digest of the whole beside them."""
    labels = np.asarray(pictures.labels, dtype=np.int64)
    digest = hashlib.sha256()
    with atomically(path) as temporary, temporary.open("wb") as out:

        def put(data: bytes) -> None:
            digest.update(data)
            out.write(data)

        put(_header(len(labels), side))
        put(labels.tobytes())
        with _bar(f"decoding {name}", len(labels), console) as advance:
            for pixels in pictures.pixels:
                put(pixels.tobytes())
                advance()
        out.flush()
        # the record before the file: one without it would be refused for good
        with atomically(record(path)) as beside:
            beside.write_text(digest.hexdigest() + "\n", encoding="ascii")


def _header(count: int, side: int) -> bytes:
    """Return the beginning of the file, padded so that the labels stand at a multiple of 8."""
    ends = 8 * count, 8 * count + count * 3 * side * side
    tensors = {
        "labels": {"dtype": "I64", "shape": [count], "data_offsets": [0, ends[0]]},
        "images": {"dtype": "U8", "shape": [count, 3, side, side], "data_offsets": list(ends)},
    }
    told = json.dumps(tensors).encode()
    told += b" " * (-len(told) % 8)
    return len(told).to_bytes(8, "little") + told


def _read(path: Path) -> Pixels:
    """Return what a file holds, once its digest was compared."""
    advice = "delete it and run again to decode the pictures anew."
    try:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
        told = record(path).read_text("ascii", errors="replace").strip()
        with safe_open(path, framework="pt") as tensors:
            pixels = Pixels(tensors.get_tensor("images"), tensors.get_tensor("labels"))
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read ({error}); {advice}") from error
    if digest.hexdigest() != told:
        raise DataError(f"{path} is truncated or altered; {advice}")
    return pixels


@contextlib.contextmanager
def _bar(told: str, total: int, console: Console | None) -> Iterator[Callable[[], None]]:
    """Show a bar of pictures while the block runs; gives the function that advances it."""
    if console is None:
        yield lambda: None
        return
    from rich import progress as rich

    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=console) as progress:
        task = progress.add_task(told, total=total)
        yield lambda: progress.advance(task)
