"""Every mechanism against its peers, in the same interleaved rounds; correctness first.

fp32, 2 threads, B=1, H=8, D=64. A side that is not what the float64 specification says, rows and
gradients, is told and not timed. Found is the median over rounds of the peer's time over ours.

Run: python -m benchmarks.mechanisms [--case NAME] [--quick]
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence

import torch

from benchmarks.cases import CASES
from benchmarks.contest import FULL, QUICK
from benchmarks.malloc import keep_large_temporaries
from benchmarks.report import CONSOLE, print_machine, print_outcomes

THREADS = 2


def main(words: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a side computed something wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=CASES, action="append", help="may be repeated")
    quick = "a quarter of the lengths, two rounds: shows that all runs, judges nothing"
    parser.add_argument("--quick", action="store_true", help=quick)
    given = parser.parse_args(words)
    torch.set_num_threads(THREADS)
    CONSOLE.print(keep_large_temporaries())
    print_machine()
    effort = QUICK if given.quick else FULL
    failed = False
    for name in given.case or CASES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the peers' own
            rows = list(CASES[name](effort))
        print_outcomes((CASES[name].__doc__ or name).strip(), rows)
        failed = failed or any(row.failed for row in rows)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
