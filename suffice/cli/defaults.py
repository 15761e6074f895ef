"""What `suffice compare` does unless it is told otherwise."""

from __future__ import annotations

from pathlib import Path

RUNS = Path("runs")
CHECKPOINT = "Folder that `suffice train`, convert, heal or quantise wrote."
TASK = "digits"
TASKS = (
    "digits, mnist, cifar100, cifar10_jpeg, tiny_imagenet_100, image_folder, imdb, amazon, "
    "womens_clothing, translation_es or table (your own), which are real, or mqar, induction, "
    "copy, two_hop or passkey, which are drawn"
)
MECHANISMS = "standard,optimised,efficient,super_attention"
BASELINE = "standard"
SEEDS = 5
MARGIN = 1.0  # points of test accuracy
DEVICE = "cpu"
