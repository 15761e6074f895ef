from __future__ import annotations

import gzip
import hashlib
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from suffice.data import load, vision
from suffice.data.dataset import permutation
from suffice.data.images import decode
from suffice.errors import ConfigError, DataError
from tests.data.jpegs import packed, picture, put

# digits


def test_digits_are_the_real_images_each_once():
    task = load("digits")
    assert (len(task.train), len(task.validation), len(task.test)) == (1078, 180, 539)
    assert task.train.inputs.shape == (1078, 1, 8, 8)
    assert task.train.inputs.dtype == torch.uint8
    splits = (task.train, task.validation, task.test)
    got = [
        (label, *image.flatten().tolist())
        for split in splits
        for image, label in zip(split.inputs, split.labels.tolist(), strict=True)
    ]
    bunch = load_digits()
    want = [
        (label, *image.flatten().astype(int).tolist())
        for image, label in zip(bunch.images, bunch.target.tolist(), strict=True)
    ]
    assert sorted(got) == sorted(want)


def test_digits_split_is_stratified():
    task = load("digits")
    totals = torch.bincount(torch.from_numpy(load_digits().target))
    for split, fraction in ((task.train, vision.TRAIN), (task.validation, vision.VALIDATION)):
        assert (split.labels.bincount() - totals * fraction).abs().max() <= 1


def test_digits_prepare_gives_mean_0_and_std_1_on_the_training_rows():
    task = load("digits")
    prepared = task.prepare(task.train.inputs)
    assert prepared.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert prepared.std(correction=0).item() == pytest.approx(1.0, abs=1e-5)
    assert 0 < task.mean < 16


# mnist

TRAIN, TEST = 20, 6


def idx(tensor: torch.Tensor) -> bytes:
    sizes = struct.pack(f">{tensor.dim()}I", *tensor.shape)
    return bytes((0, 0, 8, tensor.dim())) + sizes + bytes(tensor.flatten().tolist())


@pytest.fixture
def parts() -> dict[str, torch.Tensor]:
    """Noise in the shape of MNIST; pixel (0, 0) numbers the row."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for part, count in (("train", TRAIN), ("test", TEST)):
        images = torch.randint(256, (count, 28, 28), generator=generator, dtype=torch.uint8)
        images[:, 0, 0] = torch.arange(count)
        tensors[f"{part} images"] = images
        tensors[f"{part} labels"] = torch.arange(count, dtype=torch.uint8) % 10
    return tensors


@pytest.fixture
def small(home: Path, parts, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds the small files under the names of the real ones."""
    for name, tensor in parts.items():
        raw = idx(tensor)
        file = replace(vision.FILES[name], sha256=hashlib.sha256(raw).hexdigest(), urls=())
        monkeypatch.setitem(vision.FILES, name, file)
        at = home / file.path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_bytes(gzip.compress(raw))
    return home


def test_images_are_padded_with_zeros_to_32(small: Path, parts):
    test = load("mnist").test
    assert test.inputs.shape == (TEST, 1, 32, 32)
    assert test.inputs.dtype == torch.uint8
    assert torch.equal(test.inputs[:, 0, 2:30, 2:30], parts["test images"])
    assert test.inputs.long().sum() == parts["test images"].long().sum()
    assert test.labels.tolist() == [0, 1, 2, 3, 4, 5]


def test_validation_is_the_last_tenth_of_the_fixed_permutation(small: Path, parts):
    task = load("mnist", size=28)
    order = permutation(TRAIN)
    assert task.train.inputs[:, 0, 0, 0].tolist() == order[:18].tolist()
    assert task.validation.inputs[:, 0, 0, 0].tolist() == order[18:].tolist()
    assert task.validation.labels.tolist() == (order[18:] % 10).tolist()
    assert torch.equal(task.test.inputs[:, 0], parts["test images"])


@pytest.mark.parametrize("size", [64, 30, 28.0, "32", True, None, [28]])
def test_another_size_is_refused(size: object):
    with pytest.raises(ConfigError, match="28 or.*32"):
        load("mnist", size=size)


def test_a_tampered_file_is_named(small: Path, parts):
    at = small / vision.FILES["test labels"].path
    at.write_bytes(gzip.compress(idx(parts["test labels"].flip(0))))
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz"):
        load("mnist")


@pytest.mark.skipif("SUFFICE_DATA" not in os.environ, reason="SUFFICE_DATA names no data folder")
def test_the_real_set_has_the_moments_and_counts_of_the_publication():
    per_class = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    for size, (mean, std) in vision.MOMENTS.items():
        task = load("mnist", size=size)
        pixels = task.train.inputs.flatten().long().bincount(minlength=256).double()
        values = torch.arange(256.0, dtype=torch.float64)
        average = (pixels * values).sum() / pixels.sum()
        spread = ((pixels * (values - average) ** 2).sum() / pixels.sum()).sqrt()
        assert (average.item(), spread.item()) == pytest.approx((mean, std), rel=1e-9)
        assert (task.mean, task.std) == (mean, std)
        labels = torch.cat((task.train.labels, task.validation.labels))
        assert labels.bincount().tolist() == per_class
        assert len(task.validation) == 6000
        assert len(task.test) == 10_000


# cifar100

COUNTS = {"train": 40, "test": 10}


def rows(count: int, seed: int) -> np.ndarray:
    """Records of the binary version; the fine label is 5 times the number of the row."""
    result = np.random.default_rng(seed).integers(
        0, 256, (count, vision.CIFAR100_ROW), dtype=np.uint8
    )
    result[:, 0] = 19
    result[:, 1] = np.arange(count) * 5 % 100
    return result


def placed(root: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> None:
    monkeypatch.setenv("SUFFICE_DATA", str(root))
    sha256 = put(root, vision.CIFAR100_FILE.path, packed(files))
    monkeypatch.setattr(
        vision, "CIFAR100_FILE", replace(vision.CIFAR100_FILE, sha256=sha256, urls=())
    )
    monkeypatch.setattr(vision, "CIFAR100_COUNTS", COUNTS)


@pytest.fixture
def official(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """A user's copy of the archive, smaller."""
    result = {"train": rows(40, 1), "test": rows(10, 2)}
    files = {f"cifar-100-binary/{part}.bin": content.tobytes() for part, content in result.items()}
    placed(tmp_path, monkeypatch, {**files, "cifar-100-binary/fine_label_names.txt": b"apple"})
    return result


def test_records_are_read_colour_by_colour_with_the_fine_label(official):
    task = load("cifar100")
    assert [len(split) for split in (task.train, task.validation, task.test)] == [36, 4, 10]
    assert task.test.labels.tolist() == [0, 5, 10, 15, 20, 25, 30, 35, 40, 45]
    content = official["test"][3, 2:]
    assert (task.test.inputs[3, 1].flatten().numpy() == content[1024:2048]).all(), "green"
    assert task.test.inputs[3, 2, 4, 7] == content[2048 + 4 * 32 + 7]
    assert (task.num_classes, task.title) == (100, "CIFAR-100, 100 classes, 32x32 pixels")


def test_rows_classes_and_side_may_be_given(official):
    task = load("cifar100", rows=8, classes=50, side=48)
    assert [len(split) for split in (task.train, task.validation, task.test)] == [8, 2, 2]
    assert (task.num_classes, task.title) == (50, "CIFAR-100, 50 classes, 32x32 pixels")
    assert task.prepare(task.test.inputs).shape == (2, 3, 48, 48)
    assert torch.cat([task.train.labels, task.test.labels]).max() < 50
    with pytest.raises(ConfigError, match="rows=0.*classes=False"):
        load("cifar100", rows=0, classes=False)
    assert load("cifar100", classes=1000).num_classes == 100


@pytest.mark.parametrize("lost", [b"", bytes(10 * vision.CIFAR100_ROW - 1)])
def test_another_number_of_bytes_is_refused(home, tmp_path, monkeypatch, lost):
    files = {"cifar-100-binary/train.bin": rows(40, 1).tobytes()}
    if lost:
        files["cifar-100-binary/test.bin"] = lost
    placed(tmp_path, monkeypatch, files)
    message = rf"test\.bin holds {len(lost):,} bytes; 30,740 are due"
    with pytest.raises(DataError, match=message):
        load("cifar100")


# cifar10 jpeg

EACH = {"train": 4, "test": 2}  # pictures of a class


@pytest.fixture
def files(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A user's folder with archives of random pictures; returns their content by name."""
    monkeypatch.setenv("SUFFICE_DATA", str(tmp_path))
    result: dict[str, bytes] = {}
    for place, (part, each) in enumerate(EACH.items()):
        names = [
            f"{part}/{name}/{n:04}.jpg" for name in vision.CIFAR10_CLASSES for n in range(each)
        ]
        content = {name: picture(1000 * place + seed, 32) for seed, name in enumerate(names)}
        content["readme.txt"] = b"no picture"
        archives = vision.CIFAR10_JPEG_PARTS[part]
        sha256 = put(tmp_path, archives.files[0].path, packed(content))
        options = (replace(archives.files[0], sha256=sha256),)
        monkeypatch.setitem(
            vision.CIFAR10_JPEG_PARTS,
            part,
            replace(archives, files=options, count=each * len(vision.CIFAR10_CLASSES)),
        )
        result |= content
    return result


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


def test_missing_pictures_are_refused(files, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(
        vision.CIFAR10_JPEG_PARTS, "test", replace(vision.CIFAR10_JPEG_PARTS["test"], count=21)
    )
    with pytest.raises(DataError, match="20 images"):
        load("cifar10_jpeg")


# tiny imagenet

WNIDS = ("n01443537", "n01641577", "n07734744")


@pytest.fixture
def archives(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with three classes, in two archives for training and one for the test."""
    monkeypatch.setenv("SUFFICE_DATA", str(tmp_path))
    table = "index\twnid\twords\n" + "".join(f"{i}\t{w}\tword\n" for i, w in enumerate(WNIDS))
    sha256 = put(tmp_path, vision.TINY_NAMES.path, table.encode())
    monkeypatch.setattr(vision, "TINY_NAMES", replace(vision.TINY_NAMES, sha256=sha256))
    monkeypatch.setattr(vision, "TINY_CLASSES", 3)
    monkeypatch.setattr(vision, "TINY_COUNTS", {"train": 30, "val": 6})

    def archive(part: str, name: str, wnids: tuple[str, ...], each: int, seed: int) -> str:
        files = {
            f"{part}/{w}/{w}_{n}.JPEG": picture(seed + 10 * n, 64, mode="L" if n else "RGB")
            for w in wnids
            for n in range(each)
        }
        return put(tmp_path, f"{vision.TINY_FOLDER}/{name}.tar.gz", packed(files))

    options = {
        "train": {
            "a": archive("train", "a", WNIDS[:2], 10, 1),
            "b": archive("train", "b", WNIDS[2:], 10, 2),
        },
        "val": {"val": archive("val", "val", WNIDS, 2, 3)},
    }
    monkeypatch.setattr(vision, "TINY_FILES", options)
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


def test_sizes_that_are_not_legal_are_refused(archives: Path):
    message = "tiny_imagenet_100: pixels=112, and the images have 64; give side=112 to enlarge them"
    with pytest.raises(ConfigError, match=message):
        load("tiny_imagenet_100", pixels=112)
    with pytest.raises(ConfigError, match="side=0"):
        load("tiny_imagenet_100", side=0)


def test_a_table_of_other_classes_is_refused(archives: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vision, "TINY_CLASSES", 100)
    with pytest.raises(DataError, match=r"classes\.tsv.*3 classes"):
        load("tiny_imagenet_100")
