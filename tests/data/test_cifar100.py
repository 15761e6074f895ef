from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from suffice.data import load
from suffice.data import vision as module
from suffice.errors import ConfigError, DataError
from tests.data.jpegs import packed, put

COUNTS = {"train": 40, "test": 10}


def rows(count: int, seed: int) -> np.ndarray:
    """Records of the binary version; the fine label is 5 times the number of the row."""
    found = np.random.default_rng(seed).integers(0, 256, (count, module.ROW), dtype=np.uint8)
    found[:, 0] = 19
    found[:, 1] = np.arange(count) * 5 % 100
    return found


def placed(root: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> None:
    monkeypatch.setenv("SUFFICE_DATA", str(root))
    sha256 = put(root, module.FILE.path, packed(files))
    monkeypatch.setattr(module, "FILE", replace(module.FILE, sha256=sha256, urls=()))
    monkeypatch.setattr(module, "COUNTS", COUNTS)


@pytest.fixture
def official(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """A user's copy of the archive, smaller."""
    found = {"train": rows(40, 1), "test": rows(10, 2)}
    files = {f"cifar-100-binary/{part}.bin": own.tobytes() for part, own in found.items()}
    placed(tmp_path, monkeypatch, {**files, "cifar-100-binary/fine_label_names.txt": b"apple"})
    return found


def test_records_are_read_colour_by_colour_with_the_fine_label(official):
    task = load("cifar100")
    assert [len(split) for split in (task.train, task.validation, task.test)] == [36, 4, 10]
    assert task.test.labels.tolist() == [0, 5, 10, 15, 20, 25, 30, 35, 40, 45]
    own = official["test"][3, 2:]
    assert (task.test.inputs[3, 1].flatten().numpy() == own[1024:2048]).all(), "green"
    assert task.test.inputs[3, 2, 4, 7] == own[2048 + 4 * 32 + 7]
    assert (task.num_classes, task.title) == (100, "CIFAR-100, 100 classes, 32x32 pixels")


def test_rows_classes_and_side_may_be_given(official):
    task = load("cifar100", rows=8, classes=50, side=48)
    assert [len(split) for split in (task.train, task.validation, task.test)] == [8, 2, 2]
    assert (task.num_classes, task.title) == (50, "CIFAR-100, 50 classes, 32x32 pixels")
    assert task.prepare(task.test.inputs).shape == (2, 3, 48, 48)
    assert torch.cat([task.train.labels, task.test.labels]).max() < 50
    with pytest.raises(ConfigError, match="cifar100: rows=0, classes=False; give whole numbers"):
        load("cifar100", rows=0, classes=False)
    assert load("cifar100", classes=1000).num_classes == 100


@pytest.mark.parametrize("lost", [b"", bytes(10 * module.ROW - 1)])
def test_another_number_of_bytes_is_refused(home, tmp_path, monkeypatch, lost):
    files = {"cifar-100-binary/train.bin": rows(40, 1).tobytes()}
    if lost:
        files["cifar-100-binary/test.bin"] = lost
    placed(tmp_path, monkeypatch, files)
    told = rf"test\.bin holds {len(lost):,} bytes; 30,740 are due"
    with pytest.raises(DataError, match=told):
        load("cifar100")


def test_without_the_archive_its_place_is_told(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "FILE", replace(module.FILE, urls=()))
    with pytest.raises(DataError, match=r"cifar-100-binary\.tar\.gz was found neither below SUFF"):
        load("cifar100")
