"""Which files get systematic bugs, and how often.

Bugs of the rim, where data and results of others come in, and of the quarter of the files whose
lines are the youngest are drawn three times as often as the others.
"""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from statistics import median

from tools.mutants.operators import ROOT

RIM = (
    "comparison/external comparison/own_table.py comparison/own_loop.py comparison/results.py "
    "sklearn.py data/table.py cli/fits.py cli/verdict.py models/pretrained.py hf/acceleration "
    "convert/fit.py loading/predictions.py"
)
PACKAGES = (
    "comparison convert layers ops kernels memory generate models/gguf_format quantise encoders "
    + RIM
)
TIMES, NEW = 3, 0.25  # how often bugs of the rim and of new files are drawn; the share that is new
# drawings: their constants are places on paper
DRAWINGS = ("plots.py", "canvas.py", "sheet.py", "board.py")


def arrival(digest: str, weight: int) -> float:
    """Return when a bug comes into the sample: at a random time, at `weight` times the rate.

    Source: Efraimidis and Spirakis 2006, weighted random sampling without replacement.
    """
    return -math.log((int(digest, 16) + 0.5) / 16 ** len(digest)) / weight


def weights_of(dates: dict[Path, float]) -> dict[str, int]:
    """Return the weight of each file, by the dates of their lines."""
    newest = sorted(dates, key=lambda path: (-dates[path], path))[: round(NEW * len(dates))]
    often = {*newest, *_files(RIM)}
    return {p.relative_to(ROOT).as_posix(): TIMES if p in often else 1 for p in dates}


def changed(path: Path) -> float:
    """Return the median date of the lines of a file, in seconds, as git knows it."""
    git = ("git", "-C", str(path.parent), "blame", "--line-porcelain", path.name)
    lines = subprocess.run(git, check=True, capture_output=True, text=True).stdout.splitlines()
    return median(int(x.split()[1]) for x in lines if x.startswith("committer-time "))


def sources() -> list[Path]:
    """Return the files that get bugs."""
    return _files(PACKAGES)


def _files(names: str) -> list[Path]:
    paths = [ROOT / "suffice" / name for name in names.split()]
    each = [[p] if p.is_file() else sorted(p.rglob("*.py")) for p in paths]
    return list(dict.fromkeys(f for files in each for f in files if f.name not in DRAWINGS))
