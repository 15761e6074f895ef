from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from suffice.data import load
from suffice.data import vision as module
from suffice.errors import ConfigError, DataError
from tests.data.jpegs import packed, picture, put

WNIDS = ("n01443537", "n01641577", "n07734744")


@pytest.fixture
def archives(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with three classes, in two archives for training and one for the test."""
    monkeypatch.setenv("SUFFICE_DATA", str(tmp_path))
    table = "index\twnid\twords\n" + "".join(f"{i}\t{w}\tword\n" for i, w in enumerate(WNIDS))
    sha256 = put(tmp_path, module.NAMES.path, table.encode())
    monkeypatch.setattr(module, "NAMES", replace(module.NAMES, sha256=sha256))
    monkeypatch.setattr(module, "CLASSES", 3)
    monkeypatch.setattr(module, "COUNTS", {"train": 30, "val": 6})

    def archive(part: str, name: str, wnids: tuple[str, ...], each: int, seed: int) -> str:
        files = {
            f"{part}/{w}/{w}_{n}.JPEG": picture(seed + 10 * n, 64, mode="L" if n else "RGB")
            for w in wnids
            for n in range(each)
        }
        return put(tmp_path, f"{module.PLACE}/{name}.tar.gz", packed(files))

    given = {
        "train": {
            "a": archive("train", "a", WNIDS[:2], 10, 1),
            "b": archive("train", "b", WNIDS[2:], 10, 2),
        },
        "val": {"val": archive("val", "val", WNIDS, 2, 3)},
    }
    monkeypatch.setattr(module, "FILES", given)
    return tmp_path


def test_all_archives_are_one_task(archives: Path):
    task = load("tiny_imagenet_100")
    assert [len(split) for split in (task.train, task.validation, task.test)] == [27, 3, 6]
    assert torch.cat([task.train.labels, task.validation.labels]).bincount().tolist() == [10] * 3
    assert task.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert task.train.inputs.shape[1:] == (3, 64, 64)
    grey = task.test.inputs[1]
    assert torch.equal(grey[0], grey[2])
    assert task.title == "Tiny ImageNet, 3 of its 200 classes, 64x64 pixels"


def test_pictures_are_reduced_once_and_enlarged_for_a_model(archives: Path):
    task = load("tiny_imagenet_100", pixels=32, side=112)
    assert task.train.inputs.shape[1:] == (3, 32, 32)
    assert task.prepare(task.train.inputs[:2]).shape == (2, 3, 112, 112)
    assert "32x32" in task.title
    assert load("tiny_imagenet_100").prepare(torch.zeros(1, 3, 64, 64)).shape[2:] == (64, 64)


def test_rows_and_classes_may_be_given(archives: Path):
    task = load("tiny_imagenet_100", pixels=16, rows=10, classes=2)
    assert [len(split) for split in (task.train, task.validation, task.test)] == [10, 2, 3]
    assert (task.num_classes, task.title) == (
        2,
        "Tiny ImageNet, 2 of its 200 classes, 16x16 pixels",
    )
    assert torch.cat([task.train.labels, task.test.labels]).max() == 1


def test_sizes_that_are_not_legal_are_refused(archives: Path):
    told = "tiny_imagenet_100: pixels=112, and the pictures have 64; give side=112 to enlarge them"
    with pytest.raises(ConfigError, match=told):
        load("tiny_imagenet_100", pixels=112)
    with pytest.raises(ConfigError, match="tiny_imagenet_100: side=0; give whole numbers of"):
        load("tiny_imagenet_100", side=0)


def test_a_table_of_other_classes_is_refused(archives: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "CLASSES", 100)
    with pytest.raises(DataError, match=r"classes\.tsv holds 3 classes; 100 are due"):
        load("tiny_imagenet_100")
