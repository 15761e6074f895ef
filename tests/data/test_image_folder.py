from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from suffice.data import images as module
from suffice.data import load
from suffice.data.images import decode
from suffice.errors import ConfigError, DataError
from tests.data.jpegs import picture, put

PLACE = "vision/imagenet"


@pytest.fixture
def own(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


def test_folders_are_classes_in_the_order_of_their_names(own: Path):
    task = load("image_folder", side=8)
    assert [len(split) for split in (task.train, task.validation, task.test)] == [27, 3, 12]
    labels = torch.cat([task.train.labels, task.validation.labels])
    assert labels.bincount().tolist() == [10, 10, 10]
    assert task.test.labels.bincount().tolist() == [4, 4, 4]
    assert (task.num_classes, task.title) == (3, "Pictures of imagenet, 3 classes, 8x8 pixels")
    wanted = torch.from_numpy(decode((own / "val/cat/1.png").read_bytes(), 8, "it"))
    found = [torch.equal(image, wanted) for image in task.test.inputs]
    assert found.count(True) == 1
    assert task.test.labels[found.index(True)] == 2


def test_no_picture_is_in_two_parts(own: Path):
    task = load("image_folder", side=8)
    rows = torch.cat([task.train.inputs, task.validation.inputs, task.test.inputs]).flatten(1)
    assert len(rows.unique(dim=0)) == 42


def test_only_what_is_asked_for_is_decoded(own: Path, monkeypatch: pytest.MonkeyPatch):
    decoded = []
    monkeypatch.setattr(module, "decode", lambda *a: decoded.append(a[2]) or decode(*a))
    task = load("image_folder", side=8, rows=6, classes=2)
    assert [len(split) for split in (task.train, task.validation, task.test)] == [6, 2, 2]
    assert len(decoded) == 10
    assert not any("cat" in name for name in decoded)
    again = load("image_folder", side=8, rows=6, classes=2)
    assert len(decoded) == 10
    assert torch.equal(again.train.inputs, task.train.inputs)
    os.utime(own / "val/ant/0.JPEG", ns=(1, 1))
    load("image_folder", side=8)
    assert len(decoded) == 52


def test_a_path_may_be_absolute_and_the_test_part_be_called_test(own: Path, monkeypatch):
    whole = load("image_folder", side=8)
    monkeypatch.delenv("SUFFICE_DATA")
    (own / "val").rename(own / "test")
    task = load("image_folder", path=str(own), side=8)
    assert torch.equal(task.test.inputs, whole.test.inputs)


def test_a_folder_that_is_not_there_is_told(own: Path):
    told = "there is no folder vision/other with a folder train in it; put train and val, each with"
    with pytest.raises(DataError, match=told):
        load("image_folder", path="vision/other")
    with pytest.raises(DataError, match="there is no folder /nowhere/at/all with a folder train"):
        load("image_folder", path="/nowhere/at/all")


def test_classes_that_are_not_there_are_told(own: Path):
    with pytest.raises(DataError, match=r"imagenet/train holds 3 folders of classes; 5 are due"):
        load("image_folder", classes=5)
    (own / "val" / "bee").rename(own / "gone")
    with pytest.raises(DataError, match=r"val/bee is absent; every class needs a folder of pict"):
        load("image_folder", side=8)


def test_a_part_without_pictures_is_told(own: Path):
    for file in (own / "val").glob("*/*"):
        file.rename(file.with_suffix(".webp"))
    told = r"val holds 0 pictures of the classes and 1 is due; they end in \.jpeg, \.jpg, \.png"
    with pytest.raises(DataError, match=told):
        load("image_folder", side=8)
    for file in [*(own / "train").glob("*/*")][1:]:
        file.unlink()
    with pytest.raises(DataError, match="train holds [01] pictures of the classes and 2 are due"):
        load("image_folder", side=8)


def test_a_picture_that_cannot_be_read_is_told(own: Path):
    (own / "train/ant/gone.png").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"cannot read .*gone.png \(No such file .*; replace it or"):
        load("image_folder", side=8)
    (own / "train/ant/gone.png").unlink()
    (own / "train/ant/folder.png").mkdir()
    with pytest.raises(DataError, match=r"cannot read .*folder.png \(Is a directory\); replace it"):
        load("image_folder", side=8)


def test_counts_that_are_not_legal_are_refused(own: Path):
    with pytest.raises(ConfigError, match="image_folder: side=0; give whole numbers of at least 1"):
        load("image_folder", side=0)
    with pytest.raises(ConfigError, match="rows=28 of the training part are asked for and"):
        load("image_folder", rows=28)
    (own / "train" / "ant" / "0.JPEG").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"train/ant/0\.JPEG is no whole JPEG or PNG"):
        load("image_folder", side=8)
