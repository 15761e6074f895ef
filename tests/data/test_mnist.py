from __future__ import annotations

import gzip
import hashlib
import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from suffice.data import load, vision
from suffice.data.dataset import permutation
from suffice.errors import ConfigError, DataError

TRAIN, TEST = 20, 6


def idx(tensor: torch.Tensor) -> bytes:
    sizes = struct.pack(f">{tensor.dim()}I", *tensor.shape)
    return bytes((0, 0, 8, tensor.dim())) + sizes + bytes(tensor.flatten().tolist())


@pytest.fixture
def parts() -> dict[str, torch.Tensor]:
    """Noise in the shape of MNIST; pixel (0, 0) numbers the row."""
    generator = torch.Generator().manual_seed(0)
    made = {}
    for part, count in (("train", TRAIN), ("test", TEST)):
        images = torch.randint(256, (count, 28, 28), generator=generator, dtype=torch.uint8)
        images[:, 0, 0] = torch.arange(count)
        made[f"{part} images"] = images
        made[f"{part} labels"] = torch.arange(count, dtype=torch.uint8) % 10
    return made


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
    with pytest.raises(ConfigError, match=r"size=.* pixels is not legal; give 28 or 32"):
        load("mnist", size=size)


def test_a_tampered_file_is_named(small: Path, parts):
    at = small / vision.FILES["test labels"].path
    at.write_bytes(gzip.compress(idx(parts["test labels"].flip(0))))
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz is truncated or altered"):
        load("mnist")


def test_the_files_are_fetched_from_the_official_address_first():
    for name, file in vision.FILES.items():
        assert file.path.startswith("vision/mnist/"), name
        base = file.path.rpartition("/")[2]
        assert file.urls[0] == f"https://ossci-datasets.s3.amazonaws.com/mnist/{base}"


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
