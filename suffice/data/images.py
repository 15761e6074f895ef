"""Image data: decoding, the cache of decoded pixels, splits, and folders of the user."""

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
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from suffice.data.dataset import (
    Dataset,
    Split,
    check_counts,
    draw_rows,
    held_out,
    parts_of_keys,
    permutation,
)
from suffice.data.files import DataFile, atomically, cache, locate, members, read, write_npy_header
from suffice.errors import ConfigError, DataError
from suffice.utils.progress import bar

if TYPE_CHECKING:
    from rich.console import Console

VALIDATION = 0.1  # of the official training part
TEST_SHARE = 4  # where rows are limited: rows of training for each of validation and of test
MAX_STATISTICS_ROWS = 10_000  # for the mean and the deviation of the pixels
UNSIGNED_BYTE = 8  # in the magic number of an idx file
FORMATS = ("JPEG", "PNG")
ENDINGS = (".jpeg", ".jpg", ".png")
MAX_PIXELS = 1 << 26  # of an image, before it is resized
AT_ONCE = 256  # images that are read ahead


def image_dataset(
    train: Split,
    test: Split,
    *,
    num_classes: int,
    rows: int | None = None,
    classes: int | None = None,
    class_names: tuple[str, ...] | None = None,
    moments: tuple[Any, Any] | None = None,
    **fields: Any,
) -> Dataset:
    """Return an official training and test part as a task.

    A tenth of the training part is held out for validation, by a fixed permutation. Of it `rows`
    training rows are kept, and a quarter as many of validation and test; of the classes the first
    `classes`. `moments` are mean and deviation of the pixels; None measures them.
    """
    train_rows, test_rows = _of_classes(train, classes), _of_classes(test, classes)
    first, last = held_out(len(train_rows), VALIDATION)
    train_rows, validation_rows = train_rows[first], train_rows[last]
    check_rows(len(train_rows), rows)
    if rows is not None:
        others = -(-rows // TEST_SHARE)
        train_rows, validation_rows = train_rows[:rows], validation_rows[:others]
        test_rows = test_rows[draw_rows(len(test_rows), others)]
    images = train.take(train_rows)
    mean, std = moments or channel_moments(images.inputs)
    return Dataset(
        train=images,
        validation=train.take(validation_rows),
        test=test.take(test_rows),
        num_classes=num_classes if classes is None else min(classes, num_classes),
        class_names=None if class_names is None else class_names[:classes],
        mean=mean,
        std=std,
        **fields,
    )


def _of_classes(split: Split, classes: int | None) -> Tensor:
    if classes is None:
        return torch.arange(len(split))
    return (split.labels < classes).nonzero()[:, 0]


def check_rows(available: int, rows: int | None) -> None:
    """Raise ConfigError if more rows are to be kept than there are."""
    if rows is not None and rows > available:
        raise ConfigError(
            f"rows={rows:,} of the training part, and there are {available:,}; give fewer, "
            "or leave rows out for all."
        )


def channel_moments(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation of each channel of uint8 [N, C, H, W], over 10,000 rows at most."""
    pixels = images[:MAX_STATISTICS_ROWS].transpose(0, 1).flatten(1)
    counts = torch.stack([torch.bincount(channel, minlength=256) for channel in pixels]).double()
    levels, total = torch.arange(256, dtype=torch.float64), counts.sum(dim=1)
    mean = counts @ levels / total
    variance = counts @ levels.square() / total - mean.square()
    return tuple(mean.tolist()), tuple(variance.clamp(min=1.0).sqrt().tolist())


def parse_idx(raw: bytes, row: tuple[int, ...], name: str) -> Tensor:
    """Parse an idx file of unsigned bytes, the format of MNIST: uint8 [N, *row].

    The first four bytes are 0, 0, 8 (unsigned byte) and the number of sizes; the sizes follow as
    big-endian 32-bit integers, then one byte for each element.
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


def decode(content: bytes, side: int, name: str) -> np.ndarray:
    """Return the pixels of a JPEG or PNG as uint8 [3, side, side]: red, green and blue.

    Grey images become coloured ones. An image of another size is resized without regard to its
    proportions, each new pixel a weighted mean of all that it covers.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise DataError(
                    f"{name} has {picture.width}x{picture.height} pixels, more than the "
                    f"{MAX_PIXELS:,} that are read; leave it out."
                )
            picture.draft("RGB", (side, side))  # decodes a JPEG no larger than necessary
            colours = picture.convert("RGB")
            if colours.size != (side, side):
                colours = colours.resize((side, side), Image.Resampling.BILINEAR)
    except Image.DecompressionBombError as error:
        raise DataError(
            f"{name} has more than {MAX_PIXELS:,} pixels ({error}); leave it out."
        ) from error
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        # the message of an unidentified one names a buffer
        reason = "" if isinstance(error, UnidentifiedImageError) else f" ({error})"
        raise DataError(
            f"{name} is not a complete JPEG or PNG{reason}; replace it or leave it out."
        ) from error
    return np.ascontiguousarray(np.asarray(colours).transpose(2, 0, 1))


# the label of each image, and uint8 [3, S, S] of each, decoded as the iterator advances
Encoded = tuple[list[int], Iterable[np.ndarray]]


def cached_images(
    name: str,
    key: object,
    side: int,
    encoded: Callable[[], Encoded],
    console: Console | None = None,
) -> Split:
    """Return uint8 images [N, 3, side, side] from the cache; decode them when it has none.

    `key` are plain values that tell these images from all others of that name.
    """
    sha256 = hashlib.sha256(json.dumps([key, side], sort_keys=True).encode()).hexdigest()
    path = cache() / "decoded" / f"{name}-{sha256[:16]}.npy"
    if not path.exists():
        row = np.dtype([("image", np.uint8, (3, side, side)), ("label", np.int64)])
        labels, images = encoded()
        progress = bar(console, f"decoding {name}", len(labels))
        with atomically(path) as temporary, temporary.open("wb") as file, progress as advance:
            write_npy_header(file, row, len(labels))
            for label, pixels in zip(labels, images, strict=True):
                file.write(np.array((pixels, label), dtype=row).tobytes())
                advance()
    try:
        rows = np.load(path, mmap_mode="c")
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{path} cannot be read ({error}); delete it and run again to decode the images again."
        ) from error
    labels_there = torch.from_numpy(np.ascontiguousarray(rows["label"]))
    return Split(torch.from_numpy(rows["image"]), labels_there)


@dataclass(frozen=True, kw_only=True)
class Archives:
    """Location of the images of one part."""

    name: str  # of the part, such as "cifar10_jpeg-train"
    files: tuple[DataFile, ...]  # in order
    form: re.Pattern[str]  # of a member's whole name; its first group is the class
    classes: tuple[str, ...]  # in the order of their labels
    count: int  # images that there must be


def read_archives(part: Archives, side: int, console: Console | None = None) -> Split:
    """Return the images of a part, resized to `side` pixels, decoded now or before."""

    def encoded() -> Encoded:
        contents = [read(file, console=console) for file in part.files]

        def images() -> Iterator[tuple[str, bytes, str]]:
            for file, archive in zip(part.files, contents, strict=True):
                for match, content in members(archive, part.form, file.path):
                    yield match[1], content, f"{file.path}: {match[0]}"

        labels = [part.classes.index(name) for name, _, _ in images()]
        if len(labels) != part.count:
            raise DataError(f"{part.name} holds {len(labels):,} images; {part.count:,} are due.")
        return labels, (decode(content, side, where) for _, content, where in images())

    key = [[file.path, file.sha256] for file in part.files]
    return cached_images(part.name, key, side, encoded, console)


Listed = list[tuple[str, int]]  # the place of each image below the folder, and its label


def image_folder(
    *,
    path: str = "vision/imagenet",
    side: int = 112,
    rows: int | None = None,
    classes: int | None = None,
    console: Console | None = None,
) -> Dataset:
    """Load images from `train` and `val` (or `test`); a tenth of `train` is for validation.

    A folder that holds the folders of the classes themselves is cut: of each class a tenth of the
    images is for the test and a tenth for validation, and equal files are in one part. Classes are
    the folders of `train` in the order of their names. Only the images that are asked for are
    decoded, once.

    Args:
        path: the folder, below the data folder or the cache, or an absolute path.
        side: pixels that every image is resized to.
        rows: rows of the training part; of validation and test a quarter as many. None takes all.
        classes: number of classes to keep, the first ones; None keeps all.

    Shapes:
        inputs: uint8 [N, 3, side, side]
    """
    check_counts("image_folder", side=side, rows=rows, classes=classes)
    folder = _image_folder(path)
    names = image_classes(path, classes)
    if (folder / "train").is_dir():
        official = _list(folder, "train", names, least=2)
        cut = len(official) - max(1, round(VALIDATION * len(official)))
        train, validation = official[:cut], official[cut:]
        test = _list(folder, "val" if (folder / "val").is_dir() else "test", names)
    else:
        train, validation, test = _cut(folder, names)
    check_rows(len(train), rows)
    if rows is not None:
        others = -(-rows // TEST_SHARE)
        train, validation, test = train[:rows], validation[:others], test[:others]
    splits: dict[str, Any] = {
        part: _read_listed(folder, part, listed, side, console)
        for part, listed in (("train", train), ("validation", validation), ("test", test))
    }
    mean, std = channel_moments(splits["train"].inputs)
    return Dataset(
        name="image_folder",
        title=f"Pictures of {folder.name}, {len(names)} classes, {side}x{side} pixels",
        source=f"the folder {path}",
        num_classes=len(names),
        class_names=tuple(names),
        mean=mean,
        std=std,
        **splits,
    )


def image_classes(path: str, classes: int | None = None) -> list[str]:
    """Return the class names of a folder of images, at most `classes` of them."""
    folder = _image_folder(path)
    inside = folder / "train" if (folder / "train").is_dir() else folder
    names = sorted(entry.name for entry in os.scandir(inside) if entry.is_dir())
    if len(names) < (classes or 2):
        raise DataError(f"{inside} holds {len(names)} folders of classes; {classes or 2} are due.")
    return names[:classes]


def _image_folder(path: str) -> Path:
    here = Path(path).absolute()
    place = here if os.path.isabs(path) or here.is_dir() else locate(path)
    if place is None or not place.is_dir():
        raise DataError(
            f"there is no folder {path}; give one with a folder of images for each class, or with "
            "train and val, each with such folders, here or below the folder that SUFFICE_DATA "
            "names."
        )
    return place


def _cut(folder: Path, names: list[str]) -> tuple[Listed, Listed, Listed]:
    listed = _list(folder, ".", names, least=3)
    pairs = [(_digest(folder / place), label) for place, label in listed]
    place_of = parts_of_keys(pairs, {"test": VALIDATION, "validation": VALIDATION})
    parts: dict[str, Listed] = {"train": [], "validation": [], "test": []}
    for image, (key, _) in zip(listed, pairs, strict=True):
        parts[place_of.get(key, "train")].append(image)
    for part, images in parts.items():
        if not images:
            raise DataError(f"{folder} has no image left for {part}; give more of each class.")
    return parts["train"], parts["validation"], parts["test"]


def _digest(path: Path) -> str:
    with _readable(path):
        return hashlib.sha256(path.read_bytes()).hexdigest()


def _list(folder: Path, part: str, names: list[str], *, least: int = 1) -> Listed:
    listed: Listed = []
    for label, name in enumerate(names):
        place = folder / part / name
        if not place.is_dir():
            raise DataError(f"{place} is absent; every class needs a folder of images there.")
        images = (file for file in sorted(os.listdir(place)) if file.lower().endswith(ENDINGS))
        listed += [((Path(part) / name / file).as_posix(), label) for file in images]
    if len(listed) < least:
        raise DataError(
            f"{folder / part} holds {len(listed)} images of the classes; {least} or more are due, "
            f"that end in {', '.join(ENDINGS)}."
        )
    return [listed[row] for row in permutation(len(listed)).tolist()]


def _read_listed(
    folder: Path, part: str, listed: Listed, side: int, console: Console | None
) -> Split:
    def image(entry: tuple[str, int]) -> np.ndarray:
        path = folder / entry[0]
        with _readable(path):
            content = path.read_bytes()
        return decode(content, side, str(path))

    def images() -> Iterator[np.ndarray]:
        with ThreadPoolExecutor() as pool:
            for start in range(0, len(listed), AT_ONCE):
                yield from pool.map(image, listed[start : start + AT_ONCE])

    stamps = [[place, label, *_stamp(folder / place)] for place, label in listed]
    key = [str(folder.resolve()), stamps]
    labels = [label for _, label in listed]
    return cached_images(f"image_folder-{part}", key, side, lambda: (labels, images()), console)


def _stamp(path: Path) -> tuple[int, int]:
    with _readable(path):
        status = path.stat()
    return status.st_size, status.st_mtime_ns


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot read {path} ({error.strerror}); replace it or leave it out."
        ) from error
