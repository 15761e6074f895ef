"""Image augmentations by name.

An augmentation is drawn for all rows of an epoch at once, and a slice of it is applied to a batch:
what happens to a row depends neither on the number of processes nor on where a run resumed.

Letters: N rows of the epoch, B rows of a batch, C channels, H height, W width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample


def draw_shifts(count: int, generator: torch.Generator) -> Tensor:
    """Draw int64 [count, 2]: pixels down and right, each -1, 0 or 1 with equal chance."""
    return torch.randint(-1, 2, (count, 2), generator=generator)


def shift(images: Tensor, shifts: Tensor) -> Tensor:
    """Move images [B, C, H, W] by -1, 0 or 1 pixels, shifts int64 [B, 2], filled with zeros.

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


ROTATION = 0.02  # of a full turn, either way
ZOOM = 0.2  # of the height and of the width, in or out


def draw_affine(count: int, generator: torch.Generator) -> Tensor:
    """Draw float32 [count, 4] in -1 to 1: flip below 0, rotation, zoom of height and of width."""
    return 2.0 * torch.rand(count, 4, generator=generator) - 1.0


def affine(images: Tensor, draws: Tensor) -> Tensor:
    """Flip half of the images [B, C, H, W] from left to right, rotate and zoom each a little.

    Rotated by up to 0.02 of a full turn and zoomed by up to a fifth, in or out, of height and of
    width separately. The three are one affine map, so each image is sampled once, bilinearly; the
    image is mirrored at its border.
    """
    height, width = images.shape[2:]
    side = torch.where(draws[:, 0] < 0.0, -1.0, 1.0)
    angle = draws[:, 1] * (ROTATION * 2.0 * math.pi)
    tall, wide = 1.0 + ZOOM * draws[:, 2], 1.0 + ZOOM * draws[:, 3]
    sine, cosine, zero = angle.sin(), angle.cos(), torch.zeros_like(angle)
    # where each pixel comes from: zoomed, then rotated, then flipped; axes run from -1 to 1, so a
    # rotation of an image that is not square stretches by the ratio of its sides
    across = torch.stack([side * cosine * wide, -side * sine * tall * height / width, zero], dim=1)
    down = torch.stack([sine * wide * width / height, cosine * tall, zero], dim=1)
    grid = affine_grid(torch.stack([across, down], dim=1), list(images.shape), align_corners=False)
    return grid_sample(images.float(), grid, padding_mode="reflection", align_corners=False)


class Augmentation(NamedTuple):
    """Two functions: draw(N, generator) -> [N, ...] and apply(inputs [B, ...], draws [B, ...])."""

    draw: Callable[[int, torch.Generator], Tensor]
    apply: Callable[[Tensor, Tensor], Tensor]


AUGMENTATIONS: dict[str, Augmentation] = {
    "shift": Augmentation(draw_shifts, shift),
    "flip_turn_zoom": Augmentation(draw_affine, affine),
}
