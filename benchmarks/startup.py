"""Time to import suffice's layer against `import torch`, each in a fresh process, in turn.

Run: python -m benchmarks.startup
"""

from __future__ import annotations

import subprocess
import sys

from benchmarks.report import Row, print_machine, print_rows
from suffice.measure.timing import interleave


def start(module: str):
    return lambda: subprocess.run([sys.executable, "-c", f"import {module}"], check=True)


def main() -> None:
    print_machine()
    times = interleave(
        {"suffice": start("suffice.layers"), "torch": start("torch")},
        rounds=9,
        warmup=2,
        min_seconds_per_sample=0.001,
    )
    row = Row(
        case="import suffice.layers", peer="import torch", reach=1.1,
        ours=times["suffice"], theirs=times["torch"],
    )  # fmt: skip
    print_rows("start of a process", [row])


if __name__ == "__main__":
    main()
