"""Time to a first layer against `import torch`, each in a fresh process, in turn.

Run: python -m benchmarks.startup
"""

from __future__ import annotations

import subprocess
import sys

from benchmarks.report import Row, print_machine, print_rows
from suffice.utils.timing import interleave

LAYER = "import suffice; suffice.Attention(suffice.preset('standard', 64, 4))"


def start(code: str):
    return lambda: subprocess.run([sys.executable, "-c", code], check=True)


def main() -> None:
    print_machine()
    times = interleave(
        {"suffice": start(LAYER), "torch": start("import torch")},
        rounds=9,
        warmup=2,
        min_seconds_per_sample=0.001,
    )
    row = Row(
        case="a first layer", peer="import torch", reach=1.05,
        ours=times["suffice"], theirs=times["torch"],
    )  # fmt: skip
    print_rows("start of a process", [row])


if __name__ == "__main__":
    main()
