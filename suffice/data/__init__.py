"""Data sets: the tasks that mechanisms are compared on, real and synthetic."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

from suffice.data import images, reviews, synthetic, table, translation, vision
from suffice.data.dataset import IGNORE_INDEX, Dataset, Split
from suffice.errors import check_known, unknown

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["IGNORE_INDEX", "TASKS", "Dataset", "Split", "load"]

TASKS: dict[str, Callable[..., Dataset]] = {
    function.__name__: function
    for function in (
        reviews.amazon,
        vision.cifar100,
        vision.cifar10_jpeg,
        synthetic.copy,
        vision.digits,
        images.image_folder,
        reviews.imdb,
        synthetic.induction,
        vision.mnist,
        synthetic.mqar,
        synthetic.passkey,
        table.table,
        vision.tiny_imagenet_100,
        translation.translation_es,
        synthetic.two_hop,
        reviews.womens_clothing,
    )
}


def load(name: str, *, console: Console | None = None, **options: object) -> Dataset:
    """Load a data set by name.

    Args:
        name: a key of `TASKS`.
        console: display of a download's progress; None disables it.
        options: the keyword arguments of the function in `TASKS`, such as `size=28` for mnist.

    Raises:
        ConfigError: if the name, an option's name or an option's value is not legal.
        DataError: if the files are absent and cannot be downloaded, or are truncated or altered.
    """
    check_known("task", name, TASKS)
    legal = inspect.signature(TASKS[name]).parameters
    for option in options:
        if option not in legal:
            raise unknown(f"option of task {name!r}:", option, set(legal) - {"console"})
    if "console" in legal:
        options["console"] = console
    return TASKS[name](**options)
