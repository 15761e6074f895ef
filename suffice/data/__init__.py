"""Data sets: the tasks that mechanisms are compared on, real and synthetic."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from suffice.errors import check_known, unknown
from suffice.utils import ByName, attributes

if TYPE_CHECKING:
    from rich.console import Console

    from suffice.data.dataset import IGNORE_INDEX, Dataset, Split

__all__ = ["IGNORE_INDEX", "TASKS", "Dataset", "Split", "load"]

_NAMES = {"dataset": ("IGNORE_INDEX", "Dataset", "Split")}
TASKS = ByName.of(
    __name__,
    {
        "images": ("image_folder",),
        "reviews": ("amazon", "imdb", "womens_clothing"),
        "synthetic": ("copy", "induction", "mqar", "passkey", "two_hop"),
        "table": ("table",),
        "translation": ("translation_es",),
        "vision": ("cifar100", "cifar10_jpeg", "digits", "mnist", "tiny_imagenet_100"),
    },
)
"""The function that loads each data set."""

__getattr__ = attributes(__name__, ByName.of(__name__, _NAMES))


def load(name: str, *, console: Console | None = None, **options: Any) -> Dataset:
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
