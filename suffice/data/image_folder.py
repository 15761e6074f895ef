"""Pictures of your own: a folder of class folders, as ImageNet is kept.

Below it lie `train` and `val` (or `test`); in each a folder for each class, and pictures in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from suffice.data.dataset import Dataset, Split
from suffice.data.decoded import Pictures, Pixels, decoded
from suffice.data.find import locate
from suffice.data.image_parts import OTHERS, VALIDATION, check, moments, refuse_more
from suffice.data.partition import permutation
from suffice.data.picture import decode
from suffice.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console

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
