"""The 8x8 digits that scikit-learn carries: real images, no network, the default task."""

from __future__ import annotations

import torch

from suffice.data.dataset import Dataset, Split
from suffice.data.partition import stratified

TRAIN = 0.6  # of each class
VALIDATION = 0.1  # of each class; the rest is the test part


def digits() -> Dataset:
    """Load 1,797 grey images of handwritten digits, 8x8 pixels of 0 to 16, ten classes.

    The split is stratified and fixed: it does not depend on a training seed.

    Shapes:
        inputs: uint8 [N, 1, 8, 8]

    Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998; the
        test part of that set, as scikit-learn's `load_digits` carries it.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    inputs = torch.from_numpy(bunch.images).to(torch.uint8)[:, None]
    labels = torch.from_numpy(bunch.target).long()
    train, validation, test = stratified(labels, TRAIN, VALIDATION)
    every = Split(inputs, labels)
    pixels = inputs[train].double()
    return Dataset(
        name="digits",
        title="Handwritten digits, 8x8 pixels",
        source="Alpaydin and Kaynak 1998, UCI (CC BY 4.0), carried by scikit-learn",
        train=every.take(train),
        validation=every.take(validation),
        test=every.take(test),
        num_classes=10,
        mean=pixels.mean().item(),
        std=pixels.std(correction=0).item(),
    )
