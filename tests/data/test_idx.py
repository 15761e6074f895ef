from __future__ import annotations

import struct

import pytest
import torch

from suffice.data.images import parse
from suffice.errors import DataError

HEAD = bytes((0, 0, 8, 3)) + struct.pack(">3I", 2, 2, 3)


def test_images_and_labels_are_parsed():
    images = parse(HEAD + bytes(range(12)), (2, 3), "images")
    assert images.dtype == torch.uint8
    assert images.tolist() == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]
    labels = parse(bytes((0, 0, 8, 1)) + struct.pack(">I", 3) + bytes((7, 2, 255)), (), "labels")
    assert labels.tolist() == [7, 2, 255]


def test_another_magic_number_is_refused():
    with pytest.raises(DataError, match="images starts with 00000d03; an idx file of 00000803"):
        parse(bytes((0, 0, 13, 3)) + HEAD[4:] + bytes(12), (2, 3), "images")
    with pytest.raises(DataError, match="labels starts with 00000803; an idx file of 00000801"):
        parse(HEAD + bytes(12), (), "labels")


@pytest.mark.parametrize("length", [0, 3, 15])
def test_a_cut_head_is_refused(length: int):
    with pytest.raises(DataError, match="images starts with"):
        parse(HEAD[:length], (2, 3), "images")


def test_rows_of_another_shape_are_refused():
    with pytest.raises(DataError, match=r"holds rows of \(2, 3\); rows of \(3, 2\) are due"):
        parse(HEAD + bytes(12), (3, 2), "images")


@pytest.mark.parametrize("count", [11, 13])
def test_another_count_of_bytes_is_refused(count: int):
    with pytest.raises(DataError, match=f"holds {count} elements; 12 are due"):
        parse(HEAD + bytes(count), (2, 3), "images")
