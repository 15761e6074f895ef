"""MNIST: 70,000 handwritten digits of 28x28 pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.functional import pad

from suffice.data.dataset import Dataset, Split
from suffice.data.find import DataFile, read
from suffice.data.idx import parse
from suffice.data.image_parts import check, parts
from suffice.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

PIXELS = 28

# Mean and standard deviation of the pixels (0 to 255) of the training rows, by size of image.
MOMENTS = {28: (33.30875819633409, 78.5556751109659), 32: (25.502017994068286, 70.16947327352987)}

ADDRESSES = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


def _file(name: str, sha256: str) -> DataFile:
    urls = tuple(address + name for address in ADDRESSES)
    return DataFile(path=f"vision/mnist/{name}", sha256=sha256, urls=urls)


FILES = {
    "train images": _file(
        "train-images-idx3-ubyte.gz",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "train labels": _file(
        "train-labels-idx1-ubyte.gz",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "test images": _file(
        "t10k-images-idx3-ubyte.gz",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "test labels": _file(
        "t10k-labels-idx1-ubyte.gz",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}


def mnist(*, size: int = 32, rows: int | None = None, console: Console | None = None) -> Dataset:
    """Load MNIST; a tenth of the official training part is held out for validation.

    Args:
        size: height and width of an image in pixels; 28 as published, or 32 with two pixels of
            zeros added on each side.
        rows: of the training part; of validation and test a quarter as many. None takes all.
        console: where a download shows its progress; None shows nothing.

    Shapes:
        inputs: uint8 [N, 1, size, size]

    Raises:
        ConfigError: if size is neither 28 nor 32, or rows is below 1.
        DataError: if a file is absent and cannot be downloaded, truncated or altered.

    Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits", 1998.
    """
    if not isinstance(size, int) or size not in MOMENTS:
        raise ConfigError(f"mnist: size={size!r} pixels is not legal; give 28 or 32.")
    check("mnist", rows=rows)
    official, test = _official("train", size, console), _official("test", size, console)
    splits = parts(official, test, rows=rows)
    mean, std = MOMENTS[size]
    return Dataset(
        name="mnist",
        title=f"MNIST handwritten digits, {size}x{size} pixels",
        source="LeCun, Cortes and Burges 1998 (CC BY-SA 3.0)",
        num_classes=10,
        mean=mean,
        std=std,
        **splits,
    )


def _official(part: str, size: int, console: Console | None) -> Split:
    """Read the official training or test part, with its images padded to `size`."""
    images, labels = FILES[f"{part} images"], FILES[f"{part} labels"]
    pixels = parse(read(images, console=console), (PIXELS, PIXELS), images.path)
    border = (size - PIXELS) // 2
    inputs = pad(pixels[:, None], (border, border, border, border))
    return Split(inputs, parse(read(labels, console=console), (), labels.path).long())
