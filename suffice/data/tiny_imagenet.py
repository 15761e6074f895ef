"""Tiny ImageNet, every second of its classes: 55,000 pictures of 64x64 pixels in a hundred."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from suffice.data.dataset import Dataset, Split
from suffice.data.find import DataFile, read
from suffice.data.image_parts import check, moments, parts
from suffice.data.jpeg_archives import Archives, read_part
from suffice.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rich.console import Console

PIXELS, CLASSES = 64, 100
PLACE = "vision/tiny_imagenet_100"
FORM = r"{part}/(n\d{{8}})/\w{{1,32}}\.JPEG"

NAMES = DataFile(
    path=f"{PLACE}/classes.tsv",
    sha256="d97634d8c54dd865fee855ed0aecb7393b78813fa18031d8a16988f4a5eb6342",
)
COUNTS = {"train": 50_000, "val": 5_000}
FILES = {
    "train": {
        "train_classes_00-24": "c84c3c74debb50dc67a442d37e7da956e48debb7dc322274bcef9d6bfda65d34",
        "train_classes_25-49": "9043df58c54fb5116f56cc908a73ecee2047a5fed9c19b29813dde2c1d8d2920",
        "train_classes_50-74": "ae40c13caad185edd8cc64dd0e95889420e746635680f9c075ddd5c3a7a09b73",
        "train_classes_75-99": "01b6dd2a03d61d8e7782131f0eea700886ac30f660a7ac2f1b54f19a19052332",
    },
    "val": {"val": "105cbeb336c5f821a5cb6aac0c2ac025895f0904bb2bcf7c8ac94d7b7ff60d52"},
}


def tiny_imagenet_100(
    *,
    pixels: int = PIXELS,
    side: int | None = None,
    rows: int | None = None,
    classes: int | None = None,
    console: Console | None = None,
) -> Dataset:
    """Load the 100 classes; a tenth of the training part is for validation, `val` is the test part.

    These are pictures of ImageNet, and neither ImageNet-1K nor CIFAR-100.

    Args:
        pixels: that the 64x64 pictures are reduced to and kept as, 64 or fewer.
        side: pixels that they are resized to when a model is given them; None leaves them as they
            are.
        rows: of the training part; of validation and test a quarter as many. None takes all.
        classes: the first so many only; None takes all 100.
        console: where progress is shown; None shows nothing.

    Shapes:
        inputs: uint8 [N, 3, pixels, pixels]

    Raises:
        ConfigError: if a count is below 1, or pixels above 64.
        DataError: if a file is absent, truncated or altered.

    Source: Stanford CS231n, "Tiny ImageNet"; ImageNet: Russakovsky et al. 2015. The terms of
        ImageNet hold: research and education only.
    """
    check("tiny_imagenet_100", pixels=pixels, side=side, rows=rows, classes=classes)
    if pixels > PIXELS:
        raise ConfigError(
            f"tiny_imagenet_100: pixels={pixels}, and the pictures have {PIXELS}; give side="
            f"{pixels} to enlarge them when a model is given them."
        )
    names = _classes()
    train, test = (
        Split(*read_part(_archives(part, names), pixels, console=console)) for part in FILES
    )
    splits = parts(train, test, rows=rows, classes=classes)
    mean, std = moments(splits["train"].inputs)
    count = CLASSES if classes is None else min(classes, CLASSES)
    return Dataset(
        name="tiny_imagenet_100",
        title=f"Tiny ImageNet, {count} of its 200 classes, {pixels}x{pixels} pixels",
        source="Stanford CS231n, pictures of ImageNet (research and education only)",
        num_classes=count,
        mean=mean,
        std=std,
        side=side,
        **splits,
    )


def _archives(part: str, names: tuple[str, ...]) -> Archives:
    return Archives(
        name=f"tiny_imagenet_100-{part}",
        files=tuple(
            DataFile(path=f"{PLACE}/{name}.tar.gz", sha256=sha256)
            for name, sha256 in FILES[part].items()
        ),
        form=re.compile(FORM.format(part=part)),
        classes=names,
        count=COUNTS[part],
    )


def _classes() -> tuple[str, ...]:
    """Return the classes in the order of their labels, as the table beside the archives has it."""
    lines = read(NAMES).decode().splitlines()[1:]
    names = tuple(line.split("\t")[1] for line in lines)
    if len(names) != CLASSES:
        raise DataError(f"{NAMES.path} holds {len(names)} classes; {CLASSES} are due.")
    return names
