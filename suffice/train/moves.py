"""The changes of the training images in the Keras example of a vision Transformer, in one step.

Letters: N rows of the epoch, B rows of a batch, C channels, H height, W width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

TURN = 0.02  # of a whole turn, either way
ZOOM = 0.2  # of the height and of the width, in or out


def draw_moves(count: int, generator: torch.Generator) -> Tensor:
    """Draw float32 [count, 4] between -1 and 1: flip below 0, turn, zoom of height and of width."""
    return 2.0 * torch.rand(count, 4, generator=generator) - 1.0


def move(images: Tensor, draws: Tensor) -> Tensor:
    """Flip half of the images from left to right, turn and zoom each a little.

    Turned by up to 0.02 of a whole turn and zoomed by up to a fifth, in or out, of height and of
    width apart. The three become one map of the plane, so each image is sampled once, linearly
    between its pixels; what lies outside is the image mirrored at its border.

    Args:
        images: as the data set holds them, before they are normalised.
        draws: of `draw_moves`.

    Shapes:
        images: [B, C, H, W]; draws: float32 [B, 4] -> float32 [B, C, H, W]

    Example:
        >>> image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
        >>> move(image, torch.tensor([[-0.5, 0.0, 0.0, 0.0]]))[0, 0].round().tolist()
        [[2.0, 1.0], [4.0, 3.0]]
    """
    height, width = images.shape[2:]
    side = torch.where(draws[:, 0] < 0.0, -1.0, 1.0)
    angle = draws[:, 1] * (TURN * 2.0 * math.pi)
    tall, wide = 1.0 + ZOOM * draws[:, 2], 1.0 + ZOOM * draws[:, 3]
    sine, cosine, zero = angle.sin(), angle.cos(), torch.zeros_like(angle)
    # where each pixel comes from: zoomed, then turned, then flipped; axes run from -1 to 1, so a
    # turn of an image that is not square stretches by the ratio of its sides
    across = torch.stack([side * cosine * wide, -side * sine * tall * height / width, zero], dim=1)
    down = torch.stack([sine * wide * width / height, cosine * tall, zero], dim=1)
    grid = affine_grid(torch.stack([across, down], dim=1), list(images.shape), align_corners=False)
    return grid_sample(images.float(), grid, padding_mode="reflection", align_corners=False)
