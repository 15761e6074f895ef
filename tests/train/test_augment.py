from __future__ import annotations

import torch

from suffice.train.augment import AUGMENTATIONS, draw_shifts, shift


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
    wanted = torch.stack(
        [by_hand(i, d, r) for i, (d, r) in zip(images, shifts.tolist(), strict=True)]
    )
    moved = shift(images, shifts)
    assert moved.dtype == torch.uint8
    assert torch.equal(moved, wanted)


def test_shift_keeps_floats_and_an_unmoved_image():
    images = torch.rand(2, 1, 4, 4)
    assert torch.equal(shift(images, torch.zeros(2, 2, dtype=torch.int64)), images)


def test_draws_are_all_nine_shifts_and_come_from_the_generator():
    draws = draw_shifts(500, torch.Generator().manual_seed(3))
    assert torch.equal(draws, draw_shifts(500, torch.Generator().manual_seed(3)))
    assert {tuple(d) for d in draws.tolist()} == {(d, r) for d in (-1, 0, 1) for r in (-1, 0, 1)}
    assert AUGMENTATIONS["shift"] == (draw_shifts, shift)
