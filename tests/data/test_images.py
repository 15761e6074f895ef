from __future__ import annotations

import io
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from suffice.data import images, load
from suffice.data.dataset import Split, check_counts, held_out
from suffice.data.images import (
    cached_images,
    channel_moments,
    decode,
    image_dataset,
    parse_idx,
)
from suffice.errors import ConfigError, DataError
from suffice.testing import assert_close
from tests.data.jpegs import picture, put

# image parts


def part(count: int) -> Split:
    """Rows that show their number; classes 0 to 3 in turn."""
    rows = torch.arange(count)
    images = rows.to(torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2)
    return Split(images.contiguous(), rows % 4)


def parts(train: Split, test: Split, **options) -> dict[str, Split]:
    task = image_dataset(
        train, test, num_classes=4, name="it", title="it", source="made up", **options
    )
    return {"train": task.train, "validation": task.validation, "test": task.test}


def numbers(split: Split) -> list[int]:
    return split.inputs[:, 0, 0, 0].tolist()


def test_a_tenth_is_held_out_and_nothing_is_lost():
    result = parts(part(50), part(20))
    train, out = held_out(50, 0.1)
    assert numbers(result["train"]) == train.tolist()
    assert numbers(result["validation"]) == out.tolist()
    assert numbers(result["test"]) == list(range(20))


def test_fewer_rows_are_the_first_of_the_same_order():
    all_rows, result = parts(part(100), part(40)), parts(part(100), part(40), rows=13)
    assert numbers(result["train"]) == numbers(all_rows["train"])[:13]
    assert numbers(result["validation"]) == numbers(all_rows["validation"])[:4]
    assert len(result["test"]) == 4
    assert numbers(result["test"]) == sorted(numbers(result["test"]))
    assert numbers(result["test"]) != [0, 1, 2, 3]


def test_fewer_classes_are_the_first():
    result = parts(part(80), part(40), classes=2)
    assert [len(split) for split in result.values()] == [36, 4, 20]
    for split in result.values():
        assert split.labels.unique().tolist() == [0, 1]
        assert ((torch.tensor(numbers(split)) % 4) == split.labels).all()


def test_more_rows_than_there_are_are_refused():
    message = "rows=46 of the training part, and there are 45"
    with pytest.raises(ConfigError, match=message):
        parts(part(50), part(20), rows=46)
    assert len(parts(part(50), part(20), rows=45)["train"]) == 45


def test_counts_are_checked_together():
    check_counts("it", rows=1, classes=None)
    for rows in (0, -1, 2.0, True, "3"):
        with pytest.raises(ConfigError, match=rf"it: rows={rows!r}, side=0; give whole numbers of"):
            check_counts("it", rows=rows, side=0)


def test_moments_are_those_of_each_channel():
    images = torch.randint(0, 256, (40, 3, 5, 4), dtype=torch.uint8)
    images[:, 2] = images[:, 2] // 4
    pixels = images.double().transpose(0, 1).flatten(1)
    mean, std = channel_moments(images)
    assert_close(torch.tensor(mean), pixels.mean(dim=1).float(), "same_math")
    assert_close(torch.tensor(std), pixels.std(dim=1, correction=0).float(), "same_math")


def test_moments_look_at_ten_thousand_rows_at_most():
    images = torch.zeros(10_010, 1, 1, 1, dtype=torch.uint8)
    images[:5_000] = 100
    images[10_000:] = 255
    assert channel_moments(images) == ((50.0,), (50.0,))


def test_pictures_of_one_colour_can_be_divided_by_their_deviation():
    assert channel_moments(torch.full((2, 1, 2, 2), 7, dtype=torch.uint8)) == ((7.0,), (1.0,))


# picture


def pixels(content):
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_pixels_are_those_of_the_file_colours_first(form):
    content = picture(1, 6, form=form)
    result = decode(content, 6, "it")
    assert (result.dtype, result.shape, result.flags.c_contiguous) == (np.uint8, (3, 6, 6), True)
    assert (result == pixels(content).transpose(2, 0, 1)).all()


def test_a_grey_picture_has_three_equal_colours():
    result = decode(picture(1, 6, mode="L"), 6, "it")
    assert (result[0] == result[1]).all()
    assert (result[0] == result[2]).all()
    assert result.std() > 0


def test_a_picture_of_another_size_becomes_the_square():
    content = io.BytesIO()
    halves = np.zeros((4, 8, 3), np.uint8)
    halves[:, 4:] = 200
    Image.fromarray(halves).save(content, format="PNG")
    result = decode(content.getvalue(), 2, "it")
    assert result.shape == (3, 2, 2)
    assert (result[:, :, 0] < 40).all()
    assert (result[:, :, 1] > 160).all()
    assert decode(content.getvalue(), 16, "it").shape == (3, 16, 16)


def test_a_large_jpeg_is_reduced():
    content = picture(3, 64)
    all_rows = np.asarray(Image.open(io.BytesIO(content)).resize((8, 8), Image.Resampling.BOX))
    result = decode(content, 8, "it").transpose(1, 2, 0).astype(int)
    assert abs(result - all_rows.astype(int)).max() < 12


@pytest.mark.parametrize(
    "content",
    [b"", b"GIF89a" + bytes(40), b"nothing", picture(1)[:-40], picture(1, form="PNG")[:60]],
)
def test_incomplete_pictures_are_refused(content):
    with pytest.raises(DataError, match="a/b.jpg"):
        decode(content, 8, "a/b.jpg")


def test_a_picture_that_is_far_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(images, "MAX_PIXELS", 63)
    with pytest.raises(DataError, match="8 pixels"):
        decode(picture(1, 8), 8, "it")


def test_a_picture_that_pillow_takes_for_a_bomb_is_refused(monkeypatch):
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 10)
    with pytest.raises(DataError, match="it has more than .* pixels"):
        decode(picture(1), 8, "it")


# idx

HEAD = bytes((0, 0, 8, 3)) + struct.pack(">3I", 2, 2, 3)


def test_images_and_labels_are_parsed():
    images = parse_idx(HEAD + bytes(range(12)), (2, 3), "images")
    assert images.dtype == torch.uint8
    assert images.tolist() == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]
    labels = parse_idx(
        bytes((0, 0, 8, 1)) + struct.pack(">I", 3) + bytes((7, 2, 255)), (), "labels"
    )
    assert labels.tolist() == [7, 2, 255]


def test_another_magic_number_is_refused():
    with pytest.raises(DataError, match="images starts with 00000d03"):
        parse_idx(bytes((0, 0, 13, 3)) + HEAD[4:] + bytes(12), (2, 3), "images")
    with pytest.raises(DataError, match="labels starts with 00000803"):
        parse_idx(HEAD + bytes(12), (), "labels")


@pytest.mark.parametrize("length", [0, 3, 15])
def test_a_cut_head_is_refused(length: int):
    with pytest.raises(DataError, match="images starts with"):
        parse_idx(HEAD[:length], (2, 3), "images")


def test_rows_of_another_shape_are_refused():
    with pytest.raises(DataError, match=r"holds rows of \(2, 3\)"):
        parse_idx(HEAD + bytes(12), (3, 2), "images")


@pytest.mark.parametrize("count", [11, 13])
def test_another_count_of_bytes_is_refused(count: int):
    with pytest.raises(DataError, match=f"holds {count} elements; 12 are due"):
        parse_idx(HEAD + bytes(count), (2, 3), "images")


# decoded

LABELS = [2, 0, 1]


def encode(labelled: list[int] | None = None, side: int = 2):
    def make():
        if labelled is not None:
            labelled.append(1)
        return LABELS, (np.full((3, side, side), 9 + i, np.uint8) for i in range(3))

    return make


def only(home: Path) -> Path:
    (path,) = (home / "decoded").glob("*.npy")
    return path


def test_images_are_decoded_once_and_then_read(home: Path):
    calls: list[int] = []
    first = cached_images("it", ["key"], 2, encode(calls))
    again = cached_images("it", ["key"], 2, encode(calls))
    assert len(calls) == 1
    for pixels in (first, again):
        assert (pixels.inputs.dtype, tuple(pixels.inputs.shape)) == (torch.uint8, (3, 3, 2, 2))
        assert pixels.inputs[:, 0, 0, 0].tolist() == [9, 10, 11]
        assert (pixels.labels.dtype, pixels.labels.tolist()) == (torch.int64, LABELS)
    assert os.listdir(home / "decoded") == [only(home).name]


def test_another_key_or_size_is_another_file(home: Path):
    for key, side in ((["a"], 2), (["b"], 2), (["b"], 1)):
        assert cached_images("it", key, side, encode(side=side)).inputs.shape[2:] == (side, side)
    assert len(list((home / "decoded").glob("it-*.npy"))) == 3


@pytest.mark.parametrize("size", [0, 10, -3])
def test_a_cached_file_that_is_cut_short_is_refused(home: Path, size: int):
    cached_images("it", ["key"], 2, encode())
    only(home).write_bytes(only(home).read_bytes()[:size])
    with pytest.raises(DataError, match=r"cannot be read \(.*\)"):
        cached_images("it", ["key"], 2, encode())
    only(home).unlink()
    assert cached_images("it", ["key"], 2, encode()).inputs[0, 0, 0, 0] == 9


def test_an_error_midway_leaves_nothing(home: Path):
    def broken():
        def pixels():
            yield np.zeros((3, 2, 2), np.uint8)
            raise DataError("the second is damaged.")

        return [0, 1], pixels()

    with pytest.raises(DataError, match="the second is damaged"):
        cached_images("it", ["key"], 2, broken)
    assert not list((home / "decoded").iterdir())


# image folder

PLACE = "vision/imagenet"


@pytest.fixture
def pictures(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder of three classes, 10 pictures each to learn from and 4 for the test."""
    monkeypatch.setenv("SUFFICE_DATA", str(tmp_path))
    for place, (part, each) in enumerate((("train", 10), ("val", 4))):
        for label, name in enumerate(("ant", "bee", "cat")):
            for n in range(each):
                ending = ("JPEG", "png")[n % 2]
                content = picture(100 * place + 10 * label + n, 20, form=ending.upper())
                put(tmp_path, f"{PLACE}/{part}/{name}/{n}.{ending}", content)
    put(tmp_path, f"{PLACE}/train/ant/notes.txt", b"no picture")
    return tmp_path / PLACE


def test_folders_are_classes_in_the_order_of_their_names(pictures: Path):
    task = load("image_folder", side=8)
    assert [len(split) for split in (task.train, task.validation, task.test)] == [27, 3, 12]
    labels = torch.cat([task.train.labels, task.validation.labels])
    assert labels.bincount().tolist() == [10, 10, 10]
    assert task.test.labels.bincount().tolist() == [4, 4, 4]
    assert (task.num_classes, task.title) == (3, "Pictures of imagenet, 3 classes, 8x8 pixels")
    expected = torch.from_numpy(decode((pictures / "val/cat/1.png").read_bytes(), 8, "it"))
    result = [torch.equal(image, expected) for image in task.test.inputs]
    assert result.count(True) == 1
    assert task.test.labels[result.index(True)] == 2


def test_no_picture_is_in_two_parts(pictures: Path):
    task = load("image_folder", side=8)
    rows = torch.cat([task.train.inputs, task.validation.inputs, task.test.inputs]).flatten(1)
    assert len(rows.unique(dim=0)) == 42


def test_only_the_images_of_the_rows_are_decoded(pictures: Path, monkeypatch: pytest.MonkeyPatch):
    decoded = []
    monkeypatch.setattr(images, "decode", lambda *a: decoded.append(a[2]) or decode(*a))
    task = load("image_folder", side=8, rows=6, classes=2)
    assert [len(split) for split in (task.train, task.validation, task.test)] == [6, 2, 2]
    assert len(decoded) == 10
    assert not any("cat" in name for name in decoded)
    again = load("image_folder", side=8, rows=6, classes=2)
    assert len(decoded) == 10
    assert torch.equal(again.train.inputs, task.train.inputs)
    os.utime(pictures / "val/ant/0.JPEG", ns=(1, 1))
    load("image_folder", side=8)
    assert len(decoded) == 52


def test_a_folder_that_is_not_there_is_refused(pictures: Path):
    message = "there is no folder vision/other; give one with a folder of images for each class"
    with pytest.raises(DataError, match=message):
        load("image_folder", path="vision/other")
    with pytest.raises(DataError, match="there is no folder /nowhere/at/all"):
        load("image_folder", path="/nowhere/at/all")


def test_classes_that_are_not_there_are_refused(pictures: Path):
    with pytest.raises(DataError, match="3 folders"):
        load("image_folder", classes=5)
    (pictures / "val" / "bee").rename(pictures / "gone")
    with pytest.raises(DataError, match="val/bee is absent"):
        load("image_folder", side=8)


def test_a_part_without_pictures_is_refused(pictures: Path):
    for file in (pictures / "val").glob("*/*"):
        file.rename(file.with_suffix(".webp"))
    message = "val holds 0 images"
    with pytest.raises(DataError, match=message):
        load("image_folder", side=8)
    for file in [*(pictures / "train").glob("*/*")][1:]:
        file.unlink()
    with pytest.raises(DataError, match="train holds [01] images"):
        load("image_folder", side=8)


def test_a_picture_that_cannot_be_read_is_refused(pictures: Path):
    (pictures / "train/ant/gone.png").symlink_to("nowhere")
    with pytest.raises(DataError, match="gone.png"):
        load("image_folder", side=8)
    (pictures / "train/ant/gone.png").unlink()
    (pictures / "train/ant/folder.png").mkdir()
    with pytest.raises(DataError, match="folder.png"):
        load("image_folder", side=8)


def test_counts_that_are_not_legal_are_refused(pictures: Path):
    with pytest.raises(ConfigError, match="image_folder: side=0"):
        load("image_folder", side=0)
    with pytest.raises(ConfigError, match="rows=28"):
        load("image_folder", rows=28)
    (pictures / "train" / "ant" / "0.JPEG").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"train/ant/0\.JPEG is not a complete JPEG or PNG; "):
        load("image_folder", side=8)
