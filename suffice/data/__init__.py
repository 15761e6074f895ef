"""Data sets: the tasks that mechanisms are compared on, real ones and drawn ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

from suffice.data import (
    amazon,
    cifar10_jpeg,
    cifar100,
    copy,
    digits,
    image_folder,
    imdb,
    induction,
    mnist,
    mqar,
    passkey,
    table,
    tiny_imagenet,
    translation_es,
    two_hop,
    womens_clothing,
)
from suffice.data.dataset import NOT_ASKED, Dataset, Split
from suffice.errors import unknown

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["NOT_ASKED", "TASKS", "Dataset", "Split", "load"]

TASKS: dict[str, Callable[..., Dataset]] = {
    "amazon": amazon.amazon,
    "cifar100": cifar100.cifar100,
    "cifar10_jpeg": cifar10_jpeg.cifar10_jpeg,
    "copy": copy.copy,
    "digits": digits.digits,
    "image_folder": image_folder.image_folder,
    "imdb": imdb.imdb,
    "induction": induction.induction,
    "mnist": mnist.mnist,
    "mqar": mqar.mqar,
    "passkey": passkey.passkey,
    "table": table.table,
    "tiny_imagenet_100": tiny_imagenet.tiny_imagenet_100,
    "translation_es": translation_es.translation_es,
    "two_hop": two_hop.two_hop,
    "womens_clothing": womens_clothing.womens_clothing,
}


def load(name: str, *, console: Console | None = None, **options: object) -> Dataset:
    """Load a data set by name.

    Args:
        name: a key of `TASKS`.
        console: where a download shows its progress; None downloads silently.
        options: the keyword arguments of the function in `TASKS`, such as `size=28` for mnist.

    Raises:
        ConfigError: if the name, an option's name or an option's value is not legal.
        DataError: if the files are absent and cannot be downloaded, or are truncated or altered.
    """
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    legal = inspect.signature(TASKS[name]).parameters
    for option in options:
        if option not in legal:
            raise unknown(f"option of task {name!r}:", option, set(legal) - {"console"})
    if "console" in legal:
        options["console"] = console
    return TASKS[name](**options)
