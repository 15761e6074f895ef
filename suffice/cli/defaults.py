"""What `suffice compare` does unless it is told otherwise."""

from __future__ import annotations

from pathlib import Path

RUNS = Path("runs")
TASK = "digits"
TASKS = "digits, mnist or imdb, which are real, or mqar, induction or passkey, which are drawn"
MECHANISMS = "standard,optimised,efficient,super_attention"
BASELINE = "standard"
SEEDS = 5
MARGIN = 1.0  # points of test accuracy
DEVICE = "cpu"
