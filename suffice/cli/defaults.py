"""What `suffice compare` does unless it is told otherwise."""

from __future__ import annotations

from pathlib import Path

RUNS = Path("runs")
TASK = "digits"
MECHANISMS = "standard,optimised,efficient,super_attention"
BASELINE = "standard"
SEEDS = 5
MARGIN = 1.0  # points of test accuracy
DEVICE = "cpu"
