"""Image classification tasks: digits, MNIST, CIFAR and Tiny ImageNet."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import pad

from suffice.data.dataset import Dataset, Split, check_counts, stratified
from suffice.data.files import DataFile, members, read
from suffice.data.images import Archives, image_dataset, parse_idx, read_archives
from suffice.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rich.console import Console

TRAIN, VALIDATION = 0.6, 0.1  # of each class of the digits; the rest is the test part


def digits() -> Dataset:
    """Load 1,797 grey images of handwritten digits, 8x8 pixels of 0 to 16, ten classes.

    The split is stratified and fixed: it does not depend on a training seed.

    Shapes:
        inputs: uint8 [N, 1, 8, 8]

    Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998, CC BY
        4.0; the test part of that set, in the order of scikit-learn's `load_digits`.
    """
    images = read_digits()
    train, validation, test = map(images.take, stratified(images.labels, TRAIN, VALIDATION))
    pixels = train.inputs.double()
    return Dataset(
        name="digits",
        title="Handwritten digits, 8x8 pixels",
        source="Alpaydin and Kaynak 1998, UCI (CC BY 4.0)",
        train=train,
        validation=validation,
        test=test,
        num_classes=10,
        white=16.0,
        mean=pixels.mean().item(),
        std=pixels.std(correction=0).item(),
    )


def read_digits() -> Split:
    """Return all digits, from the package."""
    with np.load(Path(__file__).with_name("digits.npz")) as file:
        images, labels = map(torch.from_numpy, (file["images"], file["labels"]))
    return Split(images[:, None], labels.long())


MNIST_PIXELS = 28
# Mean and standard deviation of the pixels (0 to 255) of the training rows, by size of image.
MOMENTS = {28: (33.30875819633409, 78.5556751109659), 32: (25.502017994068286, 70.16947327352987)}
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
FILES = {
    part: DataFile(
        path=f"vision/mnist/{name}.gz",
        sha256=sha256,
        urls=tuple(f"{mirror}{name}.gz" for mirror in MIRRORS),
    )
    for part, (name, sha256) in zip(
        ("train images", "train labels", "test images", "test labels"), SHA256.items(), strict=True
    )
}


def mnist(*, size: int = 32, rows: int | None = None, console: Console | None = None) -> Dataset:
    """Load MNIST; a tenth of the official training part is held out for validation.

    Args:
        size: height and width of an image in pixels; 28 as published, or 32 with two pixels of
            zeros added on each side.
        rows: rows of the training part; of validation and test a quarter as many. None takes all.

    Shapes:
        inputs: uint8 [N, 1, size, size]

    Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits", 1998.
    """
    if not isinstance(size, int) or size not in MOMENTS:
        raise ConfigError(f"mnist: size={size!r} pixels is not legal; give 28 or 32.")
    check_counts("mnist", rows=rows)

    def official(part: str) -> Split:
        images, labels = FILES[f"{part} images"], FILES[f"{part} labels"]
        shape = (MNIST_PIXELS, MNIST_PIXELS)
        pixels = parse_idx(read(images, console=console), shape, images.path)
        border = (size - MNIST_PIXELS) // 2
        inputs = pad(pixels[:, None], (border, border, border, border))
        return Split(inputs, parse_idx(read(labels, console=console), (), labels.path).long())

    return image_dataset(
        official("train"),
        official("test"),
        name="mnist",
        title=f"MNIST handwritten digits, {size}x{size} pixels",
        source="LeCun, Cortes and Burges 1998 (CC BY-SA 3.0)",
        num_classes=10,
        rows=rows,
        moments=MOMENTS[size],
    )


CIFAR_PIXELS = 32
CIFAR100_CLASSES = 100
CIFAR100_ROW = 2 + 3 * CIFAR_PIXELS**2  # bytes: the coarse label, the fine one, then the colours
CIFAR100_COUNTS = {"train": 50_000, "test": 10_000}
CIFAR100_MEMBER = re.compile(r"cifar-100-binary/(train|test)\.bin")
CIFAR100_FILE = DataFile(
    path="vision/cifar100/cifar-100-binary.tar.gz",
    sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    urls=("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
)


def cifar100(
    *,
    side: int = CIFAR_PIXELS,
    rows: int | None = None,
    classes: int | None = None,
    console: Console | None = None,
) -> Dataset:
    """Load CIFAR-100 with its fine labels; a tenth of the training part is for validation.

    Args:
        side: pixels that the 32x32 images are resized to when a model is given them.
        rows: rows of the training part; of validation and test a quarter as many. None takes all.
        classes: number of classes to keep, the first ones; None keeps all 100.

    Shapes:
        inputs: uint8 [N, 3, 32, 32]

    Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
    """
    check_counts("cifar100", side=side, rows=rows, classes=classes)
    archive = members(read(CIFAR100_FILE, console=console), CIFAR100_MEMBER, CIFAR100_FILE.path)
    contents = {match[1]: content for match, content in archive}
    count = min(classes or CIFAR100_CLASSES, CIFAR100_CLASSES)
    return image_dataset(
        _parse_cifar100(contents, "train"),
        _parse_cifar100(contents, "test"),
        name="cifar100",
        title=f"CIFAR-100, {count} classes, 32x32 pixels",
        source="Krizhevsky 2009",
        num_classes=CIFAR100_CLASSES,
        rows=rows,
        classes=classes,
        side=side,
    )


def _parse_cifar100(contents: dict[str, bytes], part: str) -> Split:
    content, due = contents.get(part, b""), CIFAR100_COUNTS[part] * CIFAR100_ROW
    if len(content) != due:
        raise DataError(
            f"{CIFAR100_FILE.path}: {part}.bin holds {len(content):,} bytes; {due:,} are due."
        )
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, CIFAR100_ROW)
    images = torch.from_numpy(rows[:, 2:].copy()).reshape(-1, 3, CIFAR_PIXELS, CIFAR_PIXELS)
    return Split(images, torch.from_numpy(rows[:, 1].astype(np.int64)))


CIFAR10_CLASSES = (
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
CIFAR10_JPEG_PARTS = {
    part: Archives(
        name=f"cifar10_jpeg-{part}",
        files=(DataFile(path=f"vision/cifar10_jpeg/cifar10_{part}.tar.gz", sha256=sha256),),
        form=re.compile(rf"{part}/({'|'.join(CIFAR10_CLASSES)})/\d{{1,5}}\.jpg"),
        classes=CIFAR10_CLASSES,
        count=count,
    )
    for part, count, sha256 in (
        ("train", 50_000, "3c711becd9d4e1929e667e85dc46bd671b938c16e46410296e2b27240a7b3399"),
        ("test", 10_000, "33e6efe7655f1be7fb7373783dc369e9a809ff296896e9ff06f093b657170cc7"),
    )
}


def cifar10_jpeg(
    *, side: int = CIFAR_PIXELS, rows: int | None = None, console: Console | None = None
) -> Dataset:
    """Load CIFAR-10 from JPEG files; a tenth of the official training part is for validation.

    Each image was compressed with loss, so accuracies are not those of CIFAR-10 proper;
    comparisons between models hold.

    Args:
        side: pixels that the 32x32 images are resized to when a model is given them.
        rows: rows of the training part; of validation and test a quarter as many. None takes all.

    Shapes:
        inputs: uint8 [N, 3, 32, 32]

    Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
    """
    check_counts("cifar10_jpeg", side=side, rows=rows)
    return image_dataset(
        *(read_archives(part, CIFAR_PIXELS, console) for part in CIFAR10_JPEG_PARTS.values()),
        name="cifar10_jpeg",
        title="CIFAR-10 from JPEG files, 32x32 pixels",
        source="Krizhevsky 2009, compressed with loss",
        num_classes=len(CIFAR10_CLASSES),
        class_names=CIFAR10_CLASSES,
        rows=rows,
        side=side,
    )


TINY_PIXELS, TINY_CLASSES = 64, 100
TINY_FOLDER = "vision/tiny_imagenet_100"
TINY_NAMES = DataFile(
    path=f"{TINY_FOLDER}/classes.tsv",
    sha256="d97634d8c54dd865fee855ed0aecb7393b78813fa18031d8a16988f4a5eb6342",
)
TINY_COUNTS = {"train": 50_000, "val": 5_000}
TINY_FILES = {
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
    pixels: int = TINY_PIXELS,
    side: int | None = None,
    rows: int | None = None,
    classes: int | None = None,
    console: Console | None = None,
) -> Dataset:
    """Load the 100 classes; a tenth of the training part is for validation, `val` is the test part.

    These are images of ImageNet, and neither ImageNet-1K nor CIFAR-100.

    Args:
        pixels: pixels that the 64x64 images are reduced to and kept as, 64 or fewer.
        side: pixels that they are resized to when a model is given them; None leaves them as they
            are.
        rows: rows of the training part; of validation and test a quarter as many. None takes all.
        classes: number of classes to keep, the first ones; None keeps all 100.

    Shapes:
        inputs: uint8 [N, 3, pixels, pixels]

    Source: Stanford CS231n, "Tiny ImageNet"; ImageNet: Russakovsky et al. 2015. The terms of
        ImageNet hold: research and education only.
    """
    check_counts("tiny_imagenet_100", pixels=pixels, side=side, rows=rows, classes=classes)
    if pixels > TINY_PIXELS:
        raise ConfigError(
            f"tiny_imagenet_100: pixels={pixels}, and the images have {TINY_PIXELS}; give "
            f"side={pixels} to enlarge them when a model is given them."
        )
    table = read(TINY_NAMES).decode().splitlines()[1:]
    names = tuple(line.split("\t")[1] for line in table)  # in the order of their labels
    if len(names) != TINY_CLASSES:
        raise DataError(f"{TINY_NAMES.path} holds {len(names)} classes; {TINY_CLASSES} are due.")

    def official(part: str) -> Split:
        archives = Archives(
            name=f"tiny_imagenet_100-{part}",
            files=tuple(
                DataFile(path=f"{TINY_FOLDER}/{name}.tar.gz", sha256=sha256)
                for name, sha256 in TINY_FILES[part].items()
            ),
            form=re.compile(rf"{part}/(n\d{{8}})/\w{{1,32}}\.JPEG"),
            classes=names,
            count=TINY_COUNTS[part],
        )
        return read_archives(archives, pixels, console)

    count = min(classes or TINY_CLASSES, TINY_CLASSES)
    return image_dataset(
        official("train"),
        official("val"),
        name="tiny_imagenet_100",
        title=f"Tiny ImageNet, {count} of its 200 classes, {pixels}x{pixels} pixels",
        source="Stanford CS231n, pictures of ImageNet (research and education only)",
        num_classes=TINY_CLASSES,
        class_names=names,
        rows=rows,
        classes=classes,
        side=side,
    )
