"""Systematic bugs by the thousand: a sample of them, each against the tests that execute its lines.

`make mutants ARGS="--systematic --sample 300 --seed 1"`. The first run traces the files of tests,
which takes as long as the tests; after it a bug costs seconds. What is known is kept in
`build/mutants`: a file of tests is traced anew when it changes (delete the folder to trace all), a
caught bug is run anew when its source changes, a survivor also when tests change. `--minutes 40`
ends early; the same command goes on. Survivors on lines that no test executes are listed first.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sqlite3
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from itertools import accumulate
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from coverage.numbits import num_in_numbits  # noqa: E402 - after the environment that torch reads

from tools.mutants.forked import prepare, run, trace  # noqa: E402
from tools.mutants.operators import ROOT, Mutant, mutants, rank  # noqa: E402
from tools.mutants.sample import PACKAGES, arrival, changed, sources, weights_of  # noqa: E402

# tests that run in processes of their own, or of everything: no line of theirs is traced
UNTRACED = (
    "tests/meta tests/docs tests/benchmarks tests/native studio/tests "
    "tests/hf/upstream tests/cli/test_torchrun.py "
    "tests/train/test_two_processes.py"
)
KEPT = ROOT / "build" / "mutants"
SURVIVED = ("unexecuted", "SURVIVED")  # whether a test executes the line
STAGES = (0.1, 1, 2)  # of the budget: few tests catch most bugs, and many are dear to collect
EXTRA_SECONDS = 0.03  # that pytest adds to a test


@dataclass(frozen=True)
class Choice:
    """Tests of a mutant, the likeliest first, and what they take without it."""

    tests: tuple[str, ...]
    seconds: float
    whole: bool  # every test that executes the line is among them
    executed: bool  # the line is executed by a test; else they are tests of the module


def main() -> int:
    """Trace the tests, run the sample, and report the survivors."""
    args = _parse_args()
    prepare()
    deadline = time.monotonic() + 60 * args.minutes
    for file in _test_files(args.tests):
        if time.monotonic() > deadline:
            return _stop("tracing tests")
        _traced(file)
    sample = _sample(args)
    results_path = KEPT / f"results-{args.seed}.json"
    results = json.loads(results_path.read_text()) if results_path.exists() else {}
    for number, mutant in enumerate(sample):
        if time.monotonic() > deadline:
            _report(sample[:number], results)
            return _stop(f"after {number} of {len(sample)} bugs")
        choice = choose(mutant, args.budget)
        result = results.get(mutant.name)
        if result is None or _outdated(result, mutant, choice):
            results[mutant.name] = result = _judge(mutant, choice, args.budget)
            results_path.write_text(json.dumps(results, indent=1))
            _print(f"{result['verdict']:10} {result['seconds']:5.1f} s  {mutant}"[:200])
    return _report(sample, results)


def _judge(mutant: Mutant, choice: Choice, budget: float) -> dict:
    start, verdict, by, tests, part = time.monotonic(), "unexecuted", "", (), choice
    for share in STAGES:
        part = choose(mutant, share * budget, without=tests)
        if not part.tests:
            break
        answer, tests = run(mutant, part.tests, part.seconds), (*tests, *part.tests)
        verdict, by = SURVIVED[choice.executed], answer.get("test") or answer["end"]
        if answer["end"] not in ("passed", "no tests"):
            verdict = "caught"
            break
    return {
        "verdict": verdict,
        "seconds": time.monotonic() - start,
        "by": by,
        "tests": len(tests),
        "whole": part.whole,
        "source": _digest(ROOT / mutant.file),
        "choice": _choice_digest(choice),
    }


def _outdated(result: dict, mutant: Mutant, choice: Choice) -> bool:
    changed = result["source"] != _digest(ROOT / mutant.file)
    return changed or (result["verdict"] != "caught" and result["choice"] != _choice_digest(choice))


def _choice_digest(choice: Choice) -> str:
    files = sorted({test.partition("::")[0] for test in choice.tests})
    text = "".join(_digest(ROOT / file) for file in files) + "|".join(choice.tests)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _sample(args: argparse.Namespace) -> list[Mutant]:
    """Return the sample; a smaller one begins a larger one while no file turns old."""
    every = [mutant for path in sources() for mutant in mutants(path)]
    words = args.only.split() or [""]
    every = [mutant for mutant in every if any(word in str(mutant) for word in words)]
    _print(f"seed {args.seed}: {min(args.sample, len(every))} of {len(every)} systematic bugs")
    weights = weights_of({path: changed(path) for path in sources()})
    return sorted(every, key=lambda m: arrival(rank(m, args.seed), weights[m.file]))[: args.sample]


def _test_files(only: str) -> list[str]:
    """List the files of tests and doctests, those of the packages with bugs first."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    files += [
        path for path in sorted((ROOT / "suffice").rglob("*.py")) if ">>>" in path.read_text()
    ]
    names = [path.relative_to(ROOT).as_posix() for path in files]
    names = [name for name in names if not name.startswith(tuple(UNTRACED.split()))]
    first = [
        f"{top}/{n.removesuffix('.py')}/" for n in PACKAGES.split() for top in ("tests", "suffice")
    ]
    first = (*first, "tests/cli/test_predict", "tests/data/test_rows_to_predict")
    words = only.split() or [""]
    names = [name for name in names if any(word in name for word in words)]
    return sorted(names, key=lambda n: (not n.startswith(first), (ROOT / n).stat().st_size))


def _traced(file: str) -> dict:
    """Return what is known of a file of tests; trace it where that is outdated."""
    known = KEPT / "tests" / (file.replace("/", "+") + ".json")
    digest = _digest(ROOT / file)
    if known.exists():
        times = json.loads(known.read_text())
        if times["digest"] == digest:
            return times
    known.parent.mkdir(parents=True, exist_ok=True)
    data = known.with_suffix(".lines")
    data.unlink(missing_ok=True)
    times = {"seconds": {}, "failed": [], "collection": 0.0, "wall": 0.0} | trace(file, data)
    known.write_text(json.dumps({**times, "digest": digest, "sources": _stored_sources()}))
    end = {0: "", 1: ", some fail"}.get(times.get("code"), f", {times.get('end', 'ended early')}")
    _print(f"traced {file}: {len(times['seconds'])} tests, {times['wall']:.1f} s{end}")
    return times


@cache
def _stored_sources() -> dict[str, str]:
    """Keep the sources as they are traced; return their digests."""
    digests = {}
    for path in sources():
        digests[str(path)] = digest = _digest(path)
        copy = KEPT / "sources" / digest
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    return digests


@cache
def _traced_lines(file: Path, digest: str) -> list[int]:
    """Return for each line of a source its number when it was traced; that before, of new ones."""
    new = file.read_text("utf-8").splitlines()
    if digest == _digest(file):
        return [*range(1, len(new) + 1)]
    old = (KEPT / "sources" / digest).read_text("utf-8").splitlines()
    lines = [0] * len(new)
    for block in SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
        lines[block.b : block.b + block.size] = range(block.a + 1, block.a + block.size + 1)
    return [*accumulate(lines, lambda before, line: line or before)]


@cache
def _executed() -> dict[str, list[tuple[str, str, bytes, str]]]:
    """Return for each source tests, phases, the lines that they execute, and its digest then."""
    result: dict[str, list[tuple[str, str, bytes, str]]] = {}
    rows = (
        "SELECT path, context, numbits FROM line_bits JOIN file ON file.id = file_id "
        "JOIN context ON context.id = context_id WHERE context != ''"
    )
    for path in sorted((KEPT / "tests").glob("*.json")):  # those whose trace has ended
        digests = json.loads(path.read_text())["sources"]
        with closing(sqlite3.connect(path.with_suffix(".lines"))) as data:
            for source, context, numbers in data.execute(rows):
                test, _, phase = context.rpartition("|")
                if source in digests:
                    result.setdefault(source, []).append((test, phase, numbers, digests[source]))
    return result


@cache
def _times() -> tuple[dict[str, float], dict[str, list[str]], dict[str, float]]:
    """Return seconds of each passing test, the tests of each file, and seconds to collect it."""
    seconds, files, collection = {}, {}, {}
    for path in sorted((KEPT / "tests").glob("*.json")):
        known = json.loads(path.read_text())
        passing = {t: s for t, s in known["seconds"].items() if t not in known["failed"]}
        seconds |= passing
        file = path.stem.replace("+", "/")
        files[file] = list(passing)
        collection[file] = known["collection"]
    return seconds, files, collection


def choose(mutant: Mutant, budget: float, without: tuple[str, ...] = ()) -> Choice:
    """Choose the tests that execute the lines of a mutant, for about `budget` seconds.

    Tests of the module come first, then those of its package, then the others; within these the
    fastest. A line that runs when a test is set up may have run for all tests of the file; one
    that runs at import may matter to every test that executes the module, and so may one that no
    test was seen to execute: compilers and vmap run functions out of sight. All tests of the module
    are taken.
    Those in `without` have run already.
    """
    seconds, files, collection = _times()
    hit: dict[str, set[str]] = {}
    module: set[str] = set()
    for test, phase, numbers, digest in _executed().get(str(ROOT / mutant.file), ()):
        lines = _traced_lines(ROOT / mutant.file, digest)[mutant.lines[0] - 1 : mutant.lines[1]]
        module.add(test)
        if any(num_in_numbits(line, numbers) for line in lines):
            hit.setdefault(test, set()).add(phase)
    executed = bool(hit) and not mutant.at_import
    hit = hit if executed else {test: {"call"} for test in module}
    for test, phases in list(hit.items()):
        if "setup" in phases:
            hit |= {other: hit.get(other, {"setup"}) for other in files[_file(test)]}
    stem, package = Path(mutant.file).stem, Path(mutant.file).parts[1]

    def tier(test: str) -> int:
        file = Path(_file(test))
        own = file.stem == f"test_{stem}" or file.as_posix() == mutant.file
        return 0 if own and package in file.parts else 1 if package in file.parts else 2

    # a cached function is executed by the first test that calls it, and by no other
    hit |= {test: {"call"} for file in files for test in files[file] if tier(test) == 0}
    tests = [test for test in hit if test in seconds and test not in set(without)]

    taken: dict[str, list[str]] = {}
    total = 0.0
    for test in sorted(tests, key=lambda test: (tier(test), seconds[test])):
        file = _file(test)
        cost = seconds[test] + EXTRA_SECONDS + (0.0 if file in taken else collection[file])
        if total and total + cost > budget:
            continue
        total += cost
        taken.setdefault(file, []).append(test)
    chosen = tuple(test for tests_of_file in taken.values() for test in tests_of_file)
    return Choice(chosen, total, len(chosen) == len(tests), executed or mutant.at_import)


def _file(test: str) -> str:
    return test.partition("::")[0]


@cache
def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _report(sample: list[Mutant], results: dict) -> int:
    """Print the survivors, those that no test executes first, and the score."""
    verdicts = {mutant: results[mutant.name] for mutant in sample}
    for verdict in SURVIVED:
        for mutant, result in verdicts.items():
            if result["verdict"] == verdict:
                every = "" if result["whole"] else " (more tests execute it)"
                _print(f"{verdict}: {mutant}  [{result['tests']} tests{every}]")
    caught = sum(result["verdict"] == "caught" for result in verdicts.values())
    _print(f"{caught} of {len(sample)} caught")
    return 0


def _stop(where: str) -> int:
    _print(f"stopped {where}, as --minutes says; the same command goes on")
    return 0


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants --systematic")
    parser.add_argument("--systematic", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--sample", type=int, default=300, help="how many bugs")
    parser.add_argument("--seed", type=int, default=1, help="which sample")
    parser.add_argument("--minutes", type=float, default=1e6, help="when to stop for now")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of tests for one bug")
    parser.add_argument("--only", default="", help="bugs that contain one of these words")
    parser.add_argument("--tests", default="", help="trace only files with one of these words")
    return parser.parse_args()


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
