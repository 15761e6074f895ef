from __future__ import annotations

import pytest
import torch

from suffice.data.dataset import Split, held_out
from suffice.data.images import check, moments, parts
from suffice.errors import ConfigError
from suffice.testing import assert_close


def part(count: int) -> Split:
    """Rows that show their number; classes 0 to 3 in turn."""
    rows = torch.arange(count)
    images = rows.to(torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2)
    return Split(images.contiguous(), rows % 4)


def numbers(split: Split) -> list[int]:
    return split.inputs[:, 0, 0, 0].tolist()


def test_a_tenth_is_held_out_and_nothing_is_lost():
    found = parts(part(50), part(20))
    train, out = held_out(50, 0.1)
    assert numbers(found["train"]) == train.tolist()
    assert numbers(found["validation"]) == out.tolist()
    assert numbers(found["test"]) == list(range(20))


def test_fewer_rows_are_the_first_of_the_same_order():
    whole, found = parts(part(100), part(40)), parts(part(100), part(40), rows=13)
    assert numbers(found["train"]) == numbers(whole["train"])[:13]
    assert numbers(found["validation"]) == numbers(whole["validation"])[:4]
    assert len(found["test"]) == 4
    assert numbers(found["test"]) == sorted(numbers(found["test"]))
    assert numbers(found["test"]) != [0, 1, 2, 3]


def test_fewer_classes_are_the_first():
    found = parts(part(80), part(40), classes=2)
    assert [len(split) for split in found.values()] == [36, 4, 20]
    for split in found.values():
        assert split.labels.unique().tolist() == [0, 1]
        assert ((torch.tensor(numbers(split)) % 4) == split.labels).all()


def test_more_rows_than_there_are_are_refused():
    told = "rows=46 of the training part are asked for and there are 45; ask for fewer, or leave"
    with pytest.raises(ConfigError, match=told):
        parts(part(50), part(20), rows=46)
    assert len(parts(part(50), part(20), rows=45)["train"]) == 45


def test_counts_are_checked_together():
    check("it", rows=1, classes=None)
    for rows in (0, -1, 2.0, True, "3"):
        with pytest.raises(ConfigError, match=rf"it: rows={rows!r}, side=0; give whole numbers of"):
            check("it", rows=rows, side=0)


def test_moments_are_those_of_each_channel():
    images = torch.randint(0, 256, (40, 3, 5, 4), dtype=torch.uint8)
    images[:, 2] = images[:, 2] // 4
    pixels = images.double().transpose(0, 1).flatten(1)
    mean, std = moments(images)
    assert_close(torch.tensor(mean), pixels.mean(dim=1).float(), "same_math")
    assert_close(torch.tensor(std), pixels.std(dim=1, correction=0).float(), "same_math")


def test_moments_look_at_ten_thousand_rows_at_most():
    images = torch.zeros(10_010, 1, 1, 1, dtype=torch.uint8)
    images[:5_000] = 100
    images[10_000:] = 255
    assert moments(images) == ((50.0,), (50.0,))


def test_pictures_of_one_colour_can_be_divided_by_their_deviation():
    assert moments(torch.full((2, 1, 2, 2), 7, dtype=torch.uint8)) == ((7.0,), (1.0,))
