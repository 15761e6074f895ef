"""CIFAR-10 as JPEG files: 60,000 pictures of 32x32 pixels in ten classes, compressed with loss."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from suffice.data.dataset import Dataset, Split
from suffice.data.find import DataFile
from suffice.data.image_parts import check, moments, parts
from suffice.data.jpeg_archives import Archives, read_part

if TYPE_CHECKING:
    from rich.console import Console

PIXELS = 32
CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)


def _archives(part: str, count: int, sha256: str) -> Archives:
    return Archives(
        name=f"cifar10_jpeg-{part}",
        files=(DataFile(path=f"vision/cifar10_jpeg/cifar10_{part}.tar.gz", sha256=sha256),),
        form=re.compile(rf"{part}/({'|'.join(CLASSES)})/\d{{1,5}}\.jpg"),
        classes=CLASSES,
        count=count,
    )


PARTS = {
    "train": _archives(
        "train", 50_000, "3c711becd9d4e1929e667e85dc46bd671b938c16e46410296e2b27240a7b3399"
    ),
    "test": _archives(
        "test", 10_000, "33e6efe7655f1be7fb7373783dc369e9a809ff296896e9ff06f093b657170cc7"
    ),
}


def cifar10_jpeg(
    *, side: int = PIXELS, rows: int | None = None, console: Console | None = None
) -> Dataset:
    """Load CIFAR-10 from JPEG files; a tenth of the official training part is for validation.

    Each picture was compressed with loss, so accuracies are not those of CIFAR-10 proper;
    comparisons between models hold.

    Args:
        side: pixels that the 32x32 pictures are resized to when a model is given them.
        rows: of the training part; of validation and test a quarter as many. None takes all.
        console: where progress is shown; None shows nothing.

    Shapes:
        inputs: uint8 [N, 3, 32, 32]

    Raises:
        ConfigError: if side or rows is below 1.
        DataError: if a file is absent, truncated or altered.

    Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
    """
    check("cifar10_jpeg", side=side, rows=rows)
    train, test = (Split(*read_part(one, PIXELS, console=console)) for one in PARTS.values())
    splits = parts(train, test, rows=rows)
    mean, std = moments(splits["train"].inputs)
    return Dataset(
        name="cifar10_jpeg",
        title="CIFAR-10 from JPEG files, 32x32 pixels",
        source="Krizhevsky 2009, compressed with loss",
        num_classes=len(CLASSES),
        mean=mean,
        std=std,
        side=side,
        **splits,
    )
