"""Pictures that the papers' recipes of images learn from: the papers' own, and stand-ins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """A task of pictures, at both scales.

    Args:
        task: name of the data set, see `suffice.data.TASKS`.
        told: what the pictures are, for titles.
        num_classes: of the task.
        options: keyword arguments of its loader.
        few_classes: of the task at small scale.
        few: keyword arguments of its loader that limit the classes, at small scale.
        papers: whether these are the paper's own pictures.
    """

    task: str
    told: str
    num_classes: int
    options: Options = ()
    few_classes: int
    few: Options = ()
    papers: bool = False

    def source(self, version: int) -> str:
        """Return what a title says of the paper: its number, and that it is its sizes only.

        Example:
            >>> JPEG_CIFAR10.source(2)
            'sizes of arXiv:2403.01643v2'
        """
        return f"{'' if self.papers else 'sizes of '}arXiv:2403.01643v{version}"


FEW = 20  # classes of a hundred or more

CIFAR100 = Pictures(
    task="cifar100",
    told="CIFAR-100",
    num_classes=100,
    few_classes=FEW,
    few=(("classes", FEW),),
    papers=True,
)
JPEG_CIFAR10 = Pictures(
    task="cifar10_jpeg", told="CIFAR-10 from JPEG files", num_classes=10, few_classes=10
)
TINY_32 = Pictures(
    task="tiny_imagenet_100",
    told="Tiny ImageNet, 32x32",
    num_classes=100,
    options=(("pixels", 32),),
    few_classes=FEW,
    few=(("classes", FEW),),
)
IMAGENET = Pictures(
    task="image_folder",
    told="ImageNet",
    num_classes=1000,
    options=(("classes", 1000),),
    few_classes=FEW,
    few=(("classes", FEW),),
    papers=True,
)
TINY_64 = Pictures(
    task="tiny_imagenet_100",
    told="Tiny ImageNet, 64x64",
    num_classes=100,
    few_classes=FEW,
    few=(("classes", FEW),),
)
