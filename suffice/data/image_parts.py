"""From decoded pictures to a task: which rows to learn from, and how to prepare them."""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.data.dataset import Split
from suffice.data.partition import held_out, permutation
from suffice.errors import ConfigError

VALIDATION = 0.1  # of the official training part
MEASURED = 10_000  # rows that the mean and the deviation of the pixels are taken over, at most
OTHERS = 4  # times fewer rows of validation and test than of training, where rows are limited


def check(task: str, **counts: int | None) -> None:
    """Refuse counts that are given and not whole numbers above 0.

    Raises:
        ConfigError: with every one that is not legal.
    """
    wrong = [
        f"{name}={count!r}"
        for name, count in counts.items()
        if count is not None
        and (isinstance(count, bool) or not isinstance(count, int) or count < 1)
    ]
    if wrong:
        raise ConfigError(f"{task}: {', '.join(wrong)}; give whole numbers of at least 1.")


def parts(
    training: Split, test: Split, *, rows: int | None = None, classes: int | None = None
) -> dict[str, Split]:
    """Return the train, validation and test splits, as the arguments of a `Dataset`.

    A tenth of the training part is held out for validation, by a fixed permutation.

    Args:
        training: the official training part.
        test: the official test part.
        rows: training rows to keep, drawn at random but always the same; a quarter of as many of
            validation and test. None keeps all.
        classes: the first so many only; None keeps all.

    Raises:
        ConfigError: if there are fewer rows.
    """
    first, second = _of(training, classes), _of(test, classes)
    kept, out = held_out(len(first), VALIDATION)
    tested = torch.arange(len(second))
    refuse_more(len(kept), rows)
    if rows is not None:
        others = -(-rows // OTHERS)
        kept, out, tested = kept[:rows], out[:others], permutation(len(second))[:others].sort()[0]
    return {
        "train": training.take(first[kept]),
        "validation": training.take(first[out]),
        "test": test.take(second[tested]),
    }


def refuse_more(there: int, rows: int | None) -> None:
    """Refuse to keep more rows than there are.

    Raises:
        ConfigError: if `rows` is more.
    """
    if rows is not None and rows > there:
        raise ConfigError(
            f"rows={rows:,} of the training part are asked for and there are {there:,}; ask for "
            "fewer, or leave rows out for all."
        )


def moments(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel, over at most 10,000 rows.

    Shapes:
        images: uint8 [N, C, H, W]
    """
    pixels = images[:MEASURED].transpose(0, 1).flatten(1)
    counts = torch.stack([torch.bincount(channel, minlength=256) for channel in pixels]).double()
    levels, total = torch.arange(256, dtype=torch.float64), counts.sum(dim=1)
    mean = counts @ levels / total
    variance = counts @ levels.square() / total - mean.square()
    return tuple(mean.tolist()), tuple(variance.clamp(min=1.0).sqrt().tolist())


def _of(split: Split, classes: int | None) -> Tensor:
    """Return the rows of the first classes."""
    if classes is None:
        return torch.arange(len(split))
    return (split.labels < classes).nonzero()[:, 0]
