"""Fixed partitions of rows: the same on every machine, and no part of a training seed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

SEED = 0


def permutation(count: int) -> Tensor:
    """Return a fixed permutation of range(count), int64 [count].

    It comes from NumPy's legacy generator, whose stream is frozen for good.
    """
    order = np.random.RandomState(SEED).permutation(count)
    return torch.from_numpy(order.astype(np.int64))


def held_out(count: int, fraction: float) -> tuple[Tensor, Tensor]:
    """Cut the fixed permutation of range(count) in two: the rows kept and the rows held out.

    The rows held out are the last round(fraction * count) of the permutation.
    """
    order = permutation(count)
    cut = count - round(fraction * count)
    return order[:cut], order[cut:]


def stratified(labels: Tensor, train: float, validation: float) -> tuple[Tensor, Tensor, Tensor]:
    """Cut every class in the same proportions.

    Args:
        labels: int64 [N].
        train: fraction of each class's rows for training.
        validation: fraction of each class's rows for validation; the rest is for the test.

    Returns:
        The indices of the training, validation and test rows, each ascending.
    """
    order = permutation(len(labels))
    parts: tuple[list[Tensor], ...] = ([], [], [])
    for label in labels.unique():
        rows = order[labels[order] == label]
        first = round(train * len(rows))
        second = round((train + validation) * len(rows))
        for part, piece in zip(parts, rows.tensor_split((first, second)), strict=True):
            part.append(piece)
    first_part, second_part, third_part = (torch.cat(part).sort().values for part in parts)
    return first_part, second_part, third_part
