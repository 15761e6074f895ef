"""Random changes of the training images, by name.

An augmentation draws what it will do to every row of an epoch at once, and applies a slice of it to
a batch: what a row meets depends neither on the number of processes nor on where a run resumed.

Letters: N rows of the epoch, B rows of a batch, C channels, H height, W width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from suffice.train.moves import draw_moves, move


class Augmentation(NamedTuple):
    """Two functions: draw(N, generator) -> [N, ...] and apply(inputs [B, ...], draws [B, ...])."""

    draw: Callable[[int, torch.Generator], Tensor]
    apply: Callable[[Tensor, Tensor], Tensor]


def draw_shifts(count: int, generator: torch.Generator) -> Tensor:
    """Draw int64 [count, 2]: pixels down and right, each -1, 0 or 1 with equal chance."""
    return torch.randint(-1, 2, (count, 2), generator=generator)


def shift(images: Tensor, shifts: Tensor) -> Tensor:
    """Move each image by at most one pixel in each direction and fill with zeros.

    Args:
        images: as the data set holds them, before they are normalised.
        shifts: pixels down and right, each -1, 0 or 1.

    Shapes:
        images: [B, C, H, W]; shifts: int64 [B, 2] -> [B, C, H, W]

    Example:
        >>> shift(torch.tensor([[[[1, 2], [3, 4]]]]), torch.tensor([[1, 0]])).tolist()
        [[[[0, 0], [1, 2]]]]
    """
    height, width = images.shape[2:]
    # [B, C, 3, 3, H, W], a view: every shift of every image
    shifted = F.pad(images, (1, 1, 1, 1)).unfold(2, height, 1).unfold(3, width, 1)
    shifted = shifted.permute(0, 1, 4, 5, 2, 3)
    row = torch.arange(len(images), device=images.device)
    return shifted[row, :, :, :, 1 - shifts[:, 0], 1 - shifts[:, 1]]


AUGMENTATIONS: dict[str, Augmentation] = {
    "shift": Augmentation(draw_shifts, shift),
    "flip_turn_zoom": Augmentation(draw_moves, move),
}
