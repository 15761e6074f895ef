from __future__ import annotations

import math

import pytest
import torch

from suffice.testing import assert_close
from suffice.train.augment import AUGMENTATIONS, affine, draw_affine, draw_shifts, shift

# augment


def by_hand(image, down, right):
    channels, height, width = image.shape
    moved = torch.zeros_like(image)
    for c in range(channels):
        for y in range(height):
            for x in range(width):
                if 0 <= y - down < height and 0 <= x - right < width:
                    moved[c, y, x] = image[c, y - down, x - right]
    return moved


def test_shift_equals_loops_over_pixels_for_every_direction():
    shifts = torch.tensor([[d, r] for d in (-1, 0, 1) for r in (-1, 0, 1)])
    images = torch.randint(1, 255, (9, 2, 3, 5), dtype=torch.uint8)
    expected = torch.stack(
        [by_hand(i, d, r) for i, (d, r) in zip(images, shifts.tolist(), strict=True)]
    )
    moved = shift(images, shifts)
    assert moved.dtype == torch.uint8
    assert torch.equal(moved, expected)


def test_shift_keeps_floats_and_an_unmoved_image():
    images = torch.rand(2, 1, 4, 4)
    assert torch.equal(shift(images, torch.zeros(2, 2, dtype=torch.int64)), images)


def test_draws_are_all_nine_shifts_and_come_from_the_generator():
    draws = draw_shifts(500, torch.Generator().manual_seed(3))
    assert torch.equal(draws, draw_shifts(500, torch.Generator().manual_seed(3)))
    assert {tuple(d) for d in draws.tolist()} == {(d, r) for d in (-1, 0, 1) for r in (-1, 0, 1)}
    assert AUGMENTATIONS["shift"] == (draw_shifts, shift)


# moves


def mirrored(at, size):
    """The pixel that stands at a place outside, where the image is mirrored at its border."""
    at %= 2 * size
    return 2 * size - 1 - at if at >= size else at


def sampled(image, y, x):
    """One channel between its pixels, linearly."""
    top, left = math.floor(y), math.floor(x)
    total = 0.0
    for row in (top, top + 1):
        for column in (left, left + 1):
            weight = (1 - abs(y - row)) * (1 - abs(x - column))
            pixel = image[mirrored(row, image.shape[0]), mirrored(column, image.shape[1])]
            total += weight * float(pixel)
    return total


def by_hand_of_moves(image, draws):
    """Zoom, turn, flip around the middle, in pixels."""
    flip, turn, tall, wide = draws
    height, width = image.shape[1:]
    angle = 0.02 * 2 * math.pi * turn
    out = torch.zeros(image.shape)
    for row in range(height):
        for column in range(width):
            y, x = row - (height - 1) / 2, column - (width - 1) / 2
            y, x = y * (1 + 0.2 * tall), x * (1 + 0.2 * wide)
            y, x = (
                math.sin(angle) * x + math.cos(angle) * y,
                math.cos(angle) * x - math.sin(angle) * y,
            )
            x = -x if flip < 0 else x
            for channel, pixels in enumerate(image):
                place = y + (height - 1) / 2, x + (width - 1) / 2
                out[channel, row, column] = sampled(pixels, *place)
    return out


@pytest.mark.parametrize("shape", [(8, 8), (6, 10)])
def test_moves_equal_loops_over_pixels(shape):
    images = torch.randint(0, 256, (6, 2, *shape), dtype=torch.uint8)
    draws = draw_affine(6, torch.Generator().manual_seed(1))
    assert (draws[:, 0] < 0).any()
    assert (draws[:, 0] > 0).any()
    expected = torch.stack(
        [by_hand_of_moves(i, d) for i, d in zip(images, draws.tolist(), strict=True)]
    )
    moved = affine(images, draws)
    assert moved.dtype == torch.float32
    assert (moved - expected).abs().max() < 1e-3, "of 255"
    assert (moved - images).abs().max() > 10


def test_the_most_is_a_fiftieth_of_a_turn_and_a_fifth():
    """An image that grows by 1 a pixel tells where each pixel came from, at the middle."""
    ramp = torch.arange(41.0).expand(1, 1, 41, 41)
    wide = affine(ramp, torch.tensor([[1.0, 0.0, 0.0, 1.0]]))[0, 0, 20]
    assert (wide[21] - wide[20] - 1.2).abs() < 1e-5
    narrow = affine(ramp, torch.tensor([[1.0, 0.0, 0.0, -1.0]]))[0, 0, 20]
    assert (narrow[21] - narrow[20] - 0.8).abs() < 1e-5
    turned = affine(ramp, torch.tensor([[1.0, 1.0, 0.0, 0.0]]))[0, 0]
    angle = torch.tensor(0.02 * 2 * math.pi)
    assert (turned[21, 20] - turned[20, 20] + angle.sin()).abs() < 1e-4
    assert (turned[20, 21] - turned[20, 20] - angle.cos()).abs() < 1e-4


def test_nothing_drawn_is_nothing_moved():
    images = torch.rand(2, 3, 5, 4)
    assert_close(affine(images, torch.zeros(2, 4)), images, "same_math")


def test_a_row_meets_the_same_whoever_its_neighbours_are():
    images, draws = torch.rand(5, 1, 6, 6), draw_affine(5, torch.Generator().manual_seed(2))
    assert torch.equal(affine(images[2:4], draws[2:4]), affine(images, draws)[2:4])


def test_draws_are_of_the_generator_and_fill_their_range():
    draws = draw_affine(2_000, torch.Generator().manual_seed(3))
    assert torch.equal(draws, draw_affine(2_000, torch.Generator().manual_seed(3)))
    assert draws.shape == (2_000, 4)
    assert (draws.abs() <= 1).all()
    assert (draws.amin(dim=0) < -0.99).all()
    assert (draws.amax(dim=0) > 0.99).all()
    assert AUGMENTATIONS["flip_turn_zoom"] == (draw_affine, affine)
