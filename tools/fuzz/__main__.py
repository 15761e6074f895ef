"""`make fuzz`: random cases of every part for a time, their seeds, and what failed.

`--part NAME` runs one part, `--seconds N` is the time of each, `--seed N` the first case's seed,
`--cases N` ends a part earlier. `native` builds the kernels' test program with address and
undefined-behaviour sanitizers and lets it draw cases between guard pages. A failure prints `part
seed`: `--part PART --seed SEED --cases 1` repeats it.
Exit status: 1 if a case failed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tools.fuzz.parts import PARTS, refused

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "fuzz"


class Count(NamedTuple):
    """What became of the cases of a part."""

    cases: int
    refused: int
    failures: tuple[tuple[int, str], ...]  # seeds, and what was raised
    notes: tuple[str, ...] = ()


def run(name: str, seed: int, seconds: float, cases: int | None = None) -> Count:
    """Run random cases of one part until the time is over; a failed one does not end it."""
    done = refusals = 0
    failures: list[tuple[int, str]] = []
    seen: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        here = os.getcwd()
        part = PARTS[name](Path(folder))
        os.chdir(folder)
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end and (cases is None or done < cases):
                try:
                    part.case(random.Random(seed + done))
                except Exception as error:  # noqa: BLE001 - this is what is looked for
                    if refused(error):
                        refusals += 1
                    else:
                        where = traceback.extract_tb(error.__traceback__)[-1]
                        kind = (
                            f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}"
                        )
                        kind += f" {error}".partition(":")[0]
                        if kind not in seen:  # one seed for each place
                            seen.add(kind)
                            failures.append((seed + done, f"{kind}: {error!s:.600}"))
                done += 1
        finally:
            os.chdir(here)
            part.close()
    return Count(done, refusals, tuple(failures), tuple(sorted(part.notes)))


def run_native(seed: int, seconds: float, cases: int | None) -> Count:
    """Build the kernels' program with sanitizers, and run its random cases."""
    for words in (("-S", ROOT, "-B", BUILD, "-DSUFFICE_SANITIZE=ON"),
                  ("--build", BUILD, "--parallel", "--target", "kernels_test")):  # fmt: skip
        subprocess.run(("cmake", *map(str, words)), check=True, stdout=subprocess.DEVNULL)
    rounds = 20 if cases is None else max(cases // 60, 1)
    options = ("--seed", seed, "--seconds", int(seconds), "--rounds", rounds)
    done = subprocess.run(
        (str(BUILD / "kernels_test"), *map(str, options)),
        env={**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    count = re.search(r"(\d+) cases", done.stdout)
    failures = () if done.returncode == 0 else ((seed, done.stdout[-2000:]),)
    return Count(int(count[1]) if count else 0, 0, failures)


OTHERS: dict[str, Callable[[int, float, int | None], Count]] = {"native": run_native}


def main() -> int:
    """Run the parts that were asked for; print a line for each, and its failures."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("--part", action="append", choices=(*PARTS, *OTHERS))
    parser.add_argument("--seconds", type=float, default=60.0, help="of each part")
    parser.add_argument("--seed", type=int, default=None, help="of the first case")
    parser.add_argument("--cases", type=int, default=None, help="of each part, at most")
    args = parser.parse_args()
    seed = int(time.time()) if args.seed is None else args.seed
    total, failed = 0, False
    for name in args.part or (*PARTS, *OTHERS):
        start = time.monotonic()
        if name in PARTS:
            count = run(name, seed, args.seconds, args.cases)
        else:
            count = OTHERS[name](seed, args.seconds, args.cases)
        total += count.cases
        failed = failed or bool(count.failures)
        _print(
            f"{name:13} {count.cases:8,} cases from seed {seed}, {count.refused:,} refused, "
            f"{len(count.failures)} failures, {time.monotonic() - start:.0f} s"
        )
        for note in count.notes:
            _print(f"  {note}")
        for number, what in count.failures:
            _print(f"  FAILED {name} {number}: {what}")
    _print(f"{total:,} cases")
    return int(failed)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
