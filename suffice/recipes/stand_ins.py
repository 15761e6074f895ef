"""Recipes on other data, for those who do not have the paper's."""

from __future__ import annotations

STAND_INS = {
    "cifar100_v1": ("cifar10_v1", "tiny_imagenet_32_v1"),
    "cifar100_v2": ("cifar10_v2", "tiny_imagenet_32_v2"),
    "imagenet_v2": ("tiny_imagenet_112_v2",),
    "imagenet_equal_params": ("tiny_imagenet_112_equal_params",),
    "amazon": ("womens_clothing",),
}
"""By the paper's recipe those of its sizes on other data; their words may be fewer."""


def stands_for(name: str) -> str | None:
    """Return the paper's recipe that a recipe stands in for, None if it is none of those.

    Example:
        >>> stands_for("cifar10_v2"), stands_for("cifar100_v2")
        ('cifar100_v2', None)
    """
    return next((paper for paper, others in STAND_INS.items() if name in others), None)
