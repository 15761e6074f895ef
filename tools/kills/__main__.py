"""`python -m tools.kills`: kill -9 before each write of each verb, and what was left.

`--verb NAME` runs one. Every write is a row: the n-th call of the system that makes, replaces or
removes a name below the folder, and what a reader finds after the death before it. Exit status: 1
if a mixture was left, or what was left could not be completed.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import groupby
from pathlib import Path

from tools.kills.cases import CASES
from tools.kills.killing import Death, kill_at_each_write


def show(verb: str, deaths: list[Death]) -> str:
    """Return the rows of a verb; equal neighbours are one."""
    lines = [f"{verb}: {len(deaths)} writes"]
    for (left, then), group in groupby(deaths, key=lambda death: (death.left, death.then)):
        alike = list(group)
        first, last = alike[0], alike[-1]
        span = f"{first.number + 1}-{last.number + 1}"
        lines.append(f"  {span:>9}  {left:<24} {then:<30} {first.event} ... {last.event}")
    return "\n".join(lines)


def main() -> int:
    """Run the cases and print their tables."""
    parser = argparse.ArgumentParser(prog="python -m tools.kills", description=__doc__)
    parser.add_argument("--verb", choices=sorted(CASES), action="append")
    names = parser.parse_args().verb or list(CASES)
    wrong = 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            deaths = kill_at_each_write(CASES[name], Path(folder))
        print(show(name, deaths), flush=True)  # noqa: T201
        wrong += sum(not death.right for death in deaths)
    report = f"{wrong} deaths left a mixture or something that could not be completed"
    print(report)  # noqa: T201
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
