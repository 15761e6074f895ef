from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from suffice.data import images as module
from suffice.data.images import decode
from suffice.errors import DataError
from tests.data.jpegs import picture


def pixels(content):
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_pixels_are_those_of_the_file_colours_first(form):
    content = picture(1, 6, form=form)
    found = decode(content, 6, "it")
    assert (found.dtype, found.shape, found.flags.c_contiguous) == (np.uint8, (3, 6, 6), True)
    assert (found == pixels(content).transpose(2, 0, 1)).all()


def test_a_grey_picture_has_three_equal_colours():
    found = decode(picture(1, 6, mode="L"), 6, "it")
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()
    assert found.std() > 0


def test_a_picture_of_another_size_becomes_the_square():
    content = io.BytesIO()
    halves = np.zeros((4, 8, 3), np.uint8)
    halves[:, 4:] = 200
    Image.fromarray(halves).save(content, format="PNG")
    found = decode(content.getvalue(), 2, "it")
    assert found.shape == (3, 2, 2)
    assert (found[:, :, 0] < 40).all()
    assert (found[:, :, 1] > 160).all()
    assert decode(content.getvalue(), 16, "it").shape == (3, 16, 16)


def test_a_large_jpeg_is_reduced():
    content = picture(3, 64)
    whole = np.asarray(Image.open(io.BytesIO(content)).resize((8, 8), Image.Resampling.BOX))
    found = decode(content, 8, "it").transpose(1, 2, 0).astype(int)
    assert abs(found - whole.astype(int)).max() < 12


@pytest.mark.parametrize(
    "content",
    [b"", b"GIF89a" + bytes(40), b"nothing", picture(1)[:-40], picture(1, form="PNG")[:60]],
)
def test_what_is_no_whole_picture_is_refused(content):
    with pytest.raises(DataError, match=r"^a/b.jpg is no whole JPEG or PNG \(.*\); replace it or"):
        decode(content, 8, "a/b.jpg")


def test_a_picture_that_is_far_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(module, "MOST", 63)
    with pytest.raises(DataError, match="it has 8x8 pixels, more than the 63 that are read; leave"):
        decode(picture(1, 8), 8, "it")


def test_a_picture_that_pillow_takes_for_a_bomb_is_refused(monkeypatch):
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 10)
    with pytest.raises(DataError, match="it has more than the .* pixels that are read .*; leave"):
        decode(picture(1), 8, "it")
