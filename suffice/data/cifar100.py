"""CIFAR-100: 60,000 pictures of 32x32 pixels in a hundred classes, from the binary version."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import torch

from suffice.data.dataset import Dataset, Split
from suffice.data.find import DataFile, read
from suffice.data.image_parts import check, moments, parts
from suffice.data.members import members
from suffice.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console

PIXELS, CLASSES = 32, 100
ROW = 2 + 3 * PIXELS * PIXELS  # bytes: the coarse label, the fine one, then red, green and blue
COUNTS = {"train": 50_000, "test": 10_000}
FORM = re.compile(r"cifar-100-binary/(train|test)\.bin")
FILE = DataFile(
    path="vision/cifar100/cifar-100-binary.tar.gz",
    sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    urls=("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
)


def cifar100(
    *,
    side: int = PIXELS,
    rows: int | None = None,
    classes: int | None = None,
    console: Console | None = None,
) -> Dataset:
    """Load CIFAR-100 with its fine labels; a tenth of the training part is for validation.

    Args:
        side: pixels that the 32x32 pictures are resized to when a model is given them.
        rows: of the training part; of validation and test a quarter as many. None takes all.
        classes: the first so many only; None takes all 100.
        console: where a download shows its progress; None shows nothing.

    Shapes:
        inputs: uint8 [N, 3, 32, 32]

    Raises:
        ConfigError: if side, rows or classes is below 1.
        DataError: if the file is absent and cannot be downloaded, truncated or altered.

    Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
    """
    check("cifar100", side=side, rows=rows, classes=classes)
    found = {
        match[1]: content
        for match, content in members(read(FILE, console=console), FORM, FILE.path)
    }
    splits = parts(_parse(found, "train"), _parse(found, "test"), rows=rows, classes=classes)
    mean, std = moments(splits["train"].inputs)
    count = CLASSES if classes is None else min(classes, CLASSES)
    return Dataset(
        name="cifar100",
        title=f"CIFAR-100, {count} classes, 32x32 pixels",
        source="Krizhevsky 2009",
        num_classes=count,
        mean=mean,
        std=std,
        side=side,
        **splits,
    )


def _parse(found: dict[str, bytes], part: str) -> Split:
    """Return the pictures and the fine labels of one part."""
    content = found.get(part, b"")
    if len(content) != COUNTS[part] * ROW:
        raise DataError(
            f"{FILE.path}: {part}.bin holds {len(content):,} bytes; {COUNTS[part] * ROW:,} are due."
        )
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, ROW)
    images = torch.from_numpy(rows[:, 2:].copy()).reshape(-1, 3, PIXELS, PIXELS)
    return Split(images, torch.from_numpy(rows[:, 1].astype(np.int64)))
