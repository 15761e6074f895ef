from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from suffice.data import load
from suffice.data import vision as module
from suffice.data.images import decode
from suffice.errors import ConfigError, DataError
from tests.data.jpegs import packed, picture, put

EACH = {"train": 4, "test": 2}  # pictures of a class


@pytest.fixture
def files(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A user's folder with archives of random pictures; returns their content by name."""
    monkeypatch.setenv("SUFFICE_DATA", str(tmp_path))
    found: dict[str, bytes] = {}
    for place, (part, each) in enumerate(EACH.items()):
        names = [
            f"{part}/{name}/{n:04}.jpg" for name in module.CIFAR10_JPEG_CLASSES for n in range(each)
        ]
        own = {name: picture(1000 * place + seed, 32) for seed, name in enumerate(names)}
        own["readme.txt"] = b"no picture"
        archives = module.PARTS[part]
        sha256 = put(tmp_path, archives.files[0].path, packed(own))
        given = (replace(archives.files[0], sha256=sha256),)
        monkeypatch.setitem(
            module.PARTS,
            part,
            replace(archives, files=given, count=each * len(module.CIFAR10_JPEG_CLASSES)),
        )
        found |= own
    return found


def test_pictures_and_labels_are_those_of_the_archives(files: dict[str, bytes]):
    task = load("cifar10_jpeg")
    assert (task.name, task.num_classes) == ("cifar10_jpeg", 10)
    assert [len(split) for split in (task.train, task.validation, task.test)] == [36, 4, 20]
    for split in (task.train, task.validation, task.test):
        assert (split.inputs.dtype, tuple(split.inputs.shape[1:])) == (torch.uint8, (3, 32, 32))
    expected = torch.from_numpy(decode(files["test/dog/0001.jpg"], 32, "it"))
    assert torch.equal(task.test.inputs[11], expected)
    assert task.test.labels.tolist() == [label for label in range(10) for _ in range(2)]
    assert task.train.labels.bincount().sum() == 36


def test_the_title_says_what_they_are(files: dict[str, bytes]):
    task = load("cifar10_jpeg")
    assert task.title == "CIFAR-10 from JPEG files, 32x32 pixels"
    assert "CIFAR-100" not in task.title + task.source + task.name


def test_a_second_time_the_archives_are_not_read(files, tmp_path: Path):
    first = load("cifar10_jpeg")
    for archive in tmp_path.glob("vision/*/*.tar.gz"):
        archive.unlink()
    assert torch.equal(load("cifar10_jpeg").train.inputs, first.train.inputs)


def test_rows_and_side_may_be_given(files: dict[str, bytes]):
    task = load("cifar10_jpeg", rows=12, side=40)
    assert [len(split) for split in (task.train, task.validation, task.test)] == [12, 3, 3]
    assert tuple(task.prepare(task.train.inputs).shape) == (12, 3, 40, 40)
    assert load("cifar10_jpeg").prepare(task.train.inputs).shape[2:] == (32, 32)
    prepared = load("cifar10_jpeg").prepare(task.train.inputs)
    assert abs(prepared.mean()) < 0.5
    assert 0.5 < prepared.std() < 2.0
    with pytest.raises(ConfigError, match=r"cifar10_jpeg: side=0, rows='9'; give whole numbers"):
        load("cifar10_jpeg", rows="9", side=0)


def test_missing_pictures_are_told(files, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(module.PARTS, "test", replace(module.PARTS["test"], count=21))
    with pytest.raises(DataError, match="cifar10_jpeg-test holds 20 pictures; 21 are due"):
        load("cifar10_jpeg")


def test_without_the_archives_their_place_is_told(home: Path):
    with pytest.raises(DataError, match=r"vision/cifar10_jpeg/cifar10_train\.tar\.gz was found"):
        load("cifar10_jpeg")
