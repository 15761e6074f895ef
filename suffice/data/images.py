"""The idx format of MNIST: a magic number, the sizes, then bytes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from suffice.data.dataset import Dataset, Split, held_out, permutation
from suffice.data.files import DataFile, atomically, cache, locate, members, read, record
from suffice.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rich.console import Console


UNSIGNED_BYTE = 8


def parse(raw: bytes, row: tuple[int, ...], name: str) -> Tensor:
    """Parse an idx file of unsigned bytes.

    The first four bytes are 0, 0, 8 (unsigned byte) and the number of sizes; the sizes follow as
    big-endian 32-bit integers, then one byte for each element.

    Args:
        raw: the whole file, decompressed.
        row: the shape that each row must have, such as (28, 28), or () for labels.
        name: the file's name, for errors.

    Returns:
        uint8 [N, *row]

    Raises:
        DataError: if the magic number, the sizes or the count of bytes is another.
    """
    magic = bytes((0, 0, UNSIGNED_BYTE, len(row) + 1))
    start = 4 + 4 * (len(row) + 1)
    if raw[:4] != magic or len(raw) < start:
        raise DataError(f"{name} starts with {raw[:4].hex()}; an idx file of {magic.hex()} is due.")
    sizes = struct.unpack(f">{len(row) + 1}I", raw[4:start])
    if sizes[1:] != row:
        raise DataError(f"{name} holds rows of {sizes[1:]}; rows of {row} are due.")
    count = len(raw) - start
    if count != math.prod(sizes):
        raise DataError(f"{name} holds {count:,} elements; {math.prod(sizes):,} are due.")
    elements = np.frombuffer(raw, dtype=np.uint8, offset=start)
    return torch.from_numpy(elements.copy()).reshape(sizes)


FORMATS = ("JPEG", "PNG")
MOST = 1 << 26  # pixels of a picture, before it is resized


def decode(content: bytes, side: int, name: str) -> np.ndarray:
    """Return the pixels of a picture as red, green and blue, resized to a square.

    Grey pictures become coloured ones. A picture of another size is resized without regard to its
    proportions, each new pixel a weighted mean of all that it covers.

    Args:
        content: of the file.
        side: pixels of the square.
        name: of the file, for errors.

    Shapes:
        -> uint8 [3, side, side]

    Raises:
        DataError: if it is no JPEG or PNG, damaged, or absurdly large.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
            if picture.width * picture.height > MOST:
                raise DataError(
                    f"{name} has {picture.width}x{picture.height} pixels, more than the "
                    f"{MOST:,} that are read; leave it out."
                )
            picture.draft("RGB", (side, side))  # a JPEG is decoded no larger than it is needed
            coloured = picture.convert("RGB")
            if coloured.size != (side, side):
                coloured = coloured.resize((side, side), Image.Resampling.BILINEAR)
    except Image.DecompressionBombError as error:
        raise DataError(
            f"{name} has more than the {MOST:,} pixels that are read ({error}); leave it out."
        ) from error
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise DataError(
            f"{name} is no whole JPEG or PNG ({error}); replace it or leave it out."
        ) from error
    return np.ascontiguousarray(np.asarray(coloured).transpose(2, 0, 1))


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


VALIDATION = 0.1  # of the official training part
MEASURED = 10_000  # rows that the mean and the deviation of the pixels are taken over, at most
OTHERS = 4  # times fewer rows of validation and test than of training, where rows are limited


def check(task: str, **counts: int | None) -> None:
    """Refuse counts that are given and not whole numbers above 0.

    Raises:
        ConfigError: with every one that is not legal.
    """
    wrong = [
        f"{name}={count!r}"
        for name, count in counts.items()
        if count is not None
        and (isinstance(count, bool) or not isinstance(count, int) or count < 1)
    ]
    if wrong:
        raise ConfigError(f"{task}: {', '.join(wrong)}; give whole numbers of at least 1.")


def parts(
    training: Split, test: Split, *, rows: int | None = None, classes: int | None = None
) -> dict[str, Split]:
    """Return the train, validation and test splits, as the arguments of a `Dataset`.

    A tenth of the training part is held out for validation, by a fixed permutation.

    Args:
        training: the official training part.
        test: the official test part.
        rows: training rows to keep, drawn at random but always the same; a quarter of as many of
            validation and test. None keeps all.
        classes: the first so many only; None keeps all.

    Raises:
        ConfigError: if there are fewer rows.
    """
    first, second = _of(training, classes), _of(test, classes)
    kept, out = held_out(len(first), VALIDATION)
    tested = torch.arange(len(second))
    refuse_more(len(kept), rows)
    if rows is not None:
        others = -(-rows // OTHERS)
        kept, out, tested = kept[:rows], out[:others], permutation(len(second))[:others].sort()[0]
    return {
        "train": training.take(first[kept]),
        "validation": training.take(first[out]),
        "test": test.take(second[tested]),
    }


def refuse_more(there: int, rows: int | None) -> None:
    """Refuse to keep more rows than there are.

    Raises:
        ConfigError: if `rows` is more.
    """
    if rows is not None and rows > there:
        raise ConfigError(
            f"rows={rows:,} of the training part are asked for and there are {there:,}; ask for "
            "fewer, or leave rows out for all."
        )


def moments(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel, over at most 10,000 rows.

    Shapes:
        images: uint8 [N, C, H, W]
    """
    pixels = images[:MEASURED].transpose(0, 1).flatten(1)
    counts = torch.stack([torch.bincount(channel, minlength=256) for channel in pixels]).double()
    levels, total = torch.arange(256, dtype=torch.float64), counts.sum(dim=1)
    mean = counts @ levels / total
    variance = counts @ levels.square() / total - mean.square()
    return tuple(mean.tolist()), tuple(variance.clamp(min=1.0).sqrt().tolist())


def _of(split: Split, classes: int | None) -> Tensor:
    """Return the rows of the first classes."""
    if classes is None:
        return torch.arange(len(split))
    return (split.labels < classes).nonzero()[:, 0]


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


PLACE = "vision/imagenet"
ENDINGS = (".jpeg", ".jpg", ".png")
AT_ONCE = 256  # pictures that are read ahead

Listed = list[tuple[str, int]]  # the place of each picture below the folder, and its label


def image_folder(
    *,
    path: str = PLACE,
    side: int = 112,
    rows: int | None = None,
    classes: int | None = None,
    console: Console | None = None,
) -> Dataset:
    """Load pictures from `train` and `val` (or `test`); a tenth of `train` is for validation.

    Classes are the folders of `train` in the order of their names. Only the pictures that are asked
    for are decoded, once.

    Args:
        path: the folder, below the data folder or the cache, or an absolute path.
        side: pixels that every picture is resized to.
        rows: of the training part; of validation and test a quarter as many. None takes all.
        classes: the first so many only; None takes all.
        console: where progress is shown; None shows nothing.

    Shapes:
        inputs: uint8 [N, 3, side, side]

    Raises:
        ConfigError: if side, rows or classes is below 1.
        DataError: if the folder is absent, holds no pictures or too few classes, or a picture
            cannot be read.
    """
    check("image_folder", side=side, rows=rows, classes=classes)
    folder = _found(path)
    names = _folders(folder / "train")
    if len(names) < (classes or 1):
        raise DataError(
            f"{folder / 'train'} holds {len(names)} folders of classes; {classes or 1} are due."
        )
    names = names[:classes]
    official = _listed(folder, "train", names, least=2)
    held = max(1, round(VALIDATION * len(official)))
    kept, out = official[:-held], official[-held:]
    tested = _listed(folder, "val" if (folder / "val").is_dir() else "test", names)
    refuse_more(len(kept), rows)
    if rows is not None:
        others = -(-rows // OTHERS)
        kept, out, tested = kept[:rows], out[:others], tested[:others]
    splits = {
        part: Split(*_pixels(folder, part, listed, side, console))
        for part, listed in (("train", kept), ("validation", out), ("test", tested))
    }
    mean, std = moments(splits["train"].inputs)
    return Dataset(
        name="image_folder",
        title=f"Pictures of {folder.name}, {len(names)} classes, {side}x{side} pixels",
        source=f"the folder {path}",
        num_classes=len(names),
        mean=mean,
        std=std,
        **splits,
    )


def _found(path: str) -> Path:
    """Return where the folder is."""
    place = Path(path) if os.path.isabs(path) else locate(path)
    if place is None or not (place / "train").is_dir():
        raise DataError(
            f"there is no folder {path} with a folder train in it; put train and val, each with a "
            f"folder of pictures for each class, at {path} below a folder of yours that "
            "SUFFICE_DATA names."
        )
    return place


def _folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())


def _listed(folder: Path, part: str, names: list[str], *, least: int = 1) -> Listed:
    """Return the pictures of a part, in an order that is drawn at random but always the same."""
    found: Listed = []
    for label, name in enumerate(names):
        place = folder / part / name
        if not place.is_dir():
            raise DataError(f"{place} is absent; every class needs a folder of pictures there.")
        pictures = (file for file in sorted(os.listdir(place)) if file.lower().endswith(ENDINGS))
        found += [(f"{part}/{name}/{file}", label) for file in pictures]
    if len(found) < least:
        raise DataError(
            f"{folder / part} holds {len(found)} pictures of the classes and {least} "
            f"{'is' if least == 1 else 'are'} due; they end in {', '.join(ENDINGS)}."
        )
    return [found[row] for row in permutation(len(found)).tolist()]


def _pixels(folder: Path, part: str, listed: Listed, side: int, console: Console | None) -> Pixels:
    """Return the pictures listed, decoded now or before."""
    facts = [[place, label, *_stamp(folder / place)] for place, label in listed]

    def make() -> Pictures:
        return Pictures([label for _, label in listed], _decoded(folder, listed, side))

    key = [str(folder.resolve()), facts]
    return decoded(f"image_folder-{part}", key, side, make, console=console)


def _stamp(path: Path) -> tuple[int, int]:
    """Return what changes when a file does: its size, and when it was written."""
    try:
        told = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    return told.st_size, told.st_mtime_ns


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"cannot read {path} ({error.strerror}); replace it or leave it out.")


def _decoded(folder: Path, listed: Listed, side: int) -> Iterator[np.ndarray]:
    """Yield the pixels of each picture, some read ahead: decoding leaves the interpreter free."""

    def one(row: tuple[str, int]) -> np.ndarray:
        path = folder / row[0]
        try:
            content = path.read_bytes()
        except OSError as error:
            raise _unreadable(path, error) from error
        return decode(content, side, str(path))

    with ThreadPoolExecutor() as pool:
        for start in range(0, len(listed), AT_ONCE):
            yield from pool.map(one, listed[start : start + AT_ONCE])
