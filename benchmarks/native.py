"""The native kernels against torch's fused attention, flex_attention and our own ops on torch.

fp32, 2 threads, B=1, H=8, D=64, as benchmarks.mechanisms: a side that is not what the float64
specification says is told and not timed.

Run: python -m benchmarks.native [--quick] [--sums]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from benchmarks.cases import SIZE, Rows, against_sdpa, drawn, features, posed, softmax, told
from benchmarks.contest import FULL, QUICK, Effort, Rival, Side, contest, timed
from benchmarks.exact import check, rows_of
from benchmarks.malloc import keep_large_temporaries
from benchmarks.peers import flex
from benchmarks.report import CONSOLE, print_machine, print_outcomes
from suffice import attend
from suffice.kernels import Elu, Favor
from suffice.patterns import Causal, Full, Pattern, Window

THREADS = 2
FORWARD = ((Full(), 64), (Full(), 128), (Causal(), 512), (Causal(), 2048))
SUMS = (("causal Elu", Elu(), 512, 1.4), ("causal FAVOR+, 256 features", Favor(256), 1024, 1.0))
BOTH = ((Full(), 32), (Full(), 64), (Full(), 128), (Causal(), 512), (Causal(), 2048))


def main(words: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a side computed something wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="shows that all runs, judges nothing")
    parser.add_argument("--sums", action="store_true", help="the kernels of features alone")
    given = parser.parse_args(words)
    torch.set_num_threads(THREADS)
    CONSOLE.print(keep_large_temporaries())
    print_machine()
    effort = QUICK if given.quick else FULL
    rows = [] if given.sums else list(_rows(effort))
    if rows:
        print_outcomes("Native attention of whole sequences.", rows)
    sums = list(_sums(effort))
    print_outcomes("Native sums of features.", sums)
    return int(any(row.failed for row in (*rows, *sums)))


def _rows(effort: Effort) -> Rows:
    for backward, cases, reach in ((False, FORWARD, 1.5), (True, BOTH, 1.25)):
        for pattern, length in cases:
            size = effort.length(length)
            what = told("causal" if pattern.causal else "dense", size, backward)
            rivals = [against_sdpa(pattern, size, reach, backward=backward)]
            yield from contest(what, softmax(pattern, size, backward=backward), rivals, effort)
    length, pattern = effort.length(16384), Window(SIZE) & Causal()
    rivals = [
        Rival(name="blocked", make=partial(_blocked, pattern, length), reach=1.2),
        Rival(
            name="compiled flex_attention",
            make=partial(flex.side, drawn(length), posed(pattern, length)),
            reach=2.2,
        ),
    ]
    case = told(f"causal window {SIZE}", length)
    yield from contest(case, softmax(pattern, length, backward=False), rivals, effort)
    length = effort.length(4096)
    rivals = [Rival(name="blocked", make=partial(_blocked, pattern, length, True), reach=1.2)]
    case = told(f"causal window {SIZE}", length, True)
    few = replace(effort, rounds=min(effort.rounds, 5))
    yield from contest(case, softmax(pattern, length, backward=True), rivals, few)


def _sums(effort: Effort) -> Rows:
    """Kernels of features against a softmax, and against the same sums in torch's products."""
    for what, kernel, length, reach in SUMS:
        size = effort.length(length)
        for backward in (False, True):
            ours = features(kernel, size, backward=backward)
            made = partial(features, kernel, size, backward=backward, impl="scan")
            rivals = [
                against_sdpa(Causal(), size, reach, backward=backward),
                Rival(name="scan", make=made, reach=1.5),
            ]
            yield from contest(told(what, size, backward), ours, rivals, effort)


def _blocked(pattern: Pattern, length: int, backward: bool = False) -> Side:
    """Return our tiles through torch's flash kernel."""
    inputs, problem = drawn(length), posed(pattern, length)
    compute = partial(attend, pattern=pattern, impl="blocked")
    exact = partial(rows_of, problem=problem)
    return Side(
        name="blocked",
        call=timed(compute, inputs, backward=backward),
        check=partial(check, compute, exact, inputs, backward=backward, n=length),
    )


if __name__ == "__main__":
    raise SystemExit(main())
