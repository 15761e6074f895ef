"""Tasks that are drawn at random: no files, and the same rows on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from suffice.data.dataset import Dataset, Split
from suffice.errors import ConfigError

TRAIN, VALIDATION, TEST = 8_192, 512, 1_024  # rows

Draw = Callable[[str, np.random.RandomState, int], Split]
"""From (part, random stream, rows) to that many rows of one part of a task."""


def drawn(
    name: str, draw: Draw, *, rows: int, seed: int, num_classes: int, **facts: object
) -> Dataset:
    """Return a task whose parts are drawn independently, each a pure function of (seed, part).

    Args:
        name: the task's key.
        draw: draws rows of "train", "validation" or "test".
        rows: of the training part; the others have VALIDATION and TEST.
        seed: of the rows, which no training seed changes.
        num_classes: of the task.
        facts: the other fields of `Dataset`.

    Raises:
        ConfigError: if two parts share a row.
    """
    sizes = {"train": rows, "validation": VALIDATION, "test": TEST}
    parts = {part: draw(part, stream(name, part, seed), count) for part, count in sizes.items()}
    _refuse_shared(name, parts)
    return Dataset(name=name, num_classes=num_classes, **parts, **facts)


def stream(task: str, part: str, seed: int) -> np.random.RandomState:
    """Return the random numbers of one part of a task.

    They come from NumPy's legacy generator, whose stream is frozen for good.
    """
    digest = hashlib.blake2b(f"{task}/{part}/{seed}".encode(), digest_size=4).digest()
    return np.random.RandomState(int.from_bytes(digest, "little"))


def subsets(random: np.random.RandomState, rows: int, *, of: int, size: int) -> np.ndarray:
    """Draw `size` different numbers below `of` for each row, in random order, [rows, size]."""
    return random.random_sample((rows, of)).argsort(axis=1, kind="stable")[:, :size]


def check_counts(task: str, *, least: int = 1, **counts: int) -> None:
    """Refuse options that are not whole numbers, or too small.

    Raises:
        ConfigError: with every one that is not legal.
    """
    wrong = [
        f"{name}={value!r}"
        for name, value in counts.items()
        if isinstance(value, bool) or not isinstance(value, int) or value < least
    ]
    if wrong:
        raise ConfigError(f"{task}: {', '.join(wrong)}; give whole numbers of at least {least}.")


def _refuse_shared(name: str, parts: dict[str, Split]) -> None:
    """Raise if a row is in two parts: then the task has too few different rows."""
    seen: dict[bytes, str] = {}
    for part, split in parts.items():
        for row in split.inputs.numpy():
            other = seen.setdefault(row.tobytes(), part)
            if other != part:
                raise ConfigError(
                    f"{name}: a row of {part} is one of {other} too, so few different rows do "
                    "these sizes allow; give larger ones."
                )
