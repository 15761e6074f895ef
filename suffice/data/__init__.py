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
_MODULES = {
    "amazon": "reviews",
    "cifar100": "vision",
    "cifar10_jpeg": "vision",
    "copy": "synthetic",
    "digits": "vision",
    "image_folder": "images",
    "imdb": "reviews",
    "induction": "synthetic",
    "mnist": "vision",
    "mqar": "synthetic",
    "passkey": "synthetic",
    "table": "table",
    "tiny_imagenet_100": "vision",
    "translation_es": "translation",
    "two_hop": "synthetic",
    "womens_clothing": "reviews",
}
TASKS = ByName({task: f"{__name__}.{module}" for task, module in _MODULES.items()})
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
