from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits

from suffice.data import load, vision


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


def test_digits_split_is_the_same_each_time():
    torch.manual_seed(5)
    first = load("digits")
    torch.manual_seed(6)
    assert torch.equal(first.test.inputs, load("digits").test.inputs)
