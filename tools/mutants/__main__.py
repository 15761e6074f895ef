"""Seed a copy of the project with one bug at a time, and report which of them the tests catch.

`python -m tools.mutants --list` shows the bugs of the lists beside this file; without it each one
is put into a copy, and the tests that should fail run there. First all these tests run in a copy
without a bug; those that fail there are deselected. A bug in the C++ sources is compiled, which
needs a compiler and CMake. The working tree is never changed. `--systematic` makes bugs by rule
instead: see `systematic.py`.

Exit status: 0, also where bugs survive; 1 if fewer are caught than `--at-least` asks for, or the
tests cannot run without a bug; 2 if an entry does not match the sources, and then none is run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from suffice.ops.native import library
from tools.mutants.bugs import BUGS, Bug

ROOT = Path(__file__).resolve().parents[2]
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "runs")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
# -O1 compiles three times as fast and computes the same
LOWER_LEVEL = ("CMakeLists.txt", "set(LEVEL -O3)", "set(LEVEL -O1)")
# Python imports this at startup: the finders of an editable installation would bypass the copy
SITECUSTOMIZE = """import sys

sys.meta_path[:] = [f for f in sys.meta_path if not type(f).__module__.startswith("_editable")]
"""
PASSED, FAILED, INTERRUPTED = 0, 1, 2  # exit codes of pytest; below 0 it crashed


def main() -> int:
    """Run the selected bugs and print a line for each."""
    if "--systematic" in sys.argv:  # a process of its own: it must not have imported suffice
        os.execv(sys.executable, (sys.executable, "-m", "tools.mutants.systematic", *sys.argv[1:]))
    args = _parse_args()
    bugs = [bug for bug in BUGS if args.only in f"{bug.file}: {bug.effect}"]
    if problems := [line for bug in bugs for line in stale(bug)]:
        _print("\n".join(problems))
        return 2
    if args.list:
        for bug in bugs:
            _print(f"{bug.file}: {bug.effect}")
        return 0
    failing: list[str] = []
    if not args.no_control:
        failing = control(bugs, args.limit * len(bugs))
        for test in failing:
            _print(f"deselected, as it fails without a bug: {test}")
    caught = 0
    with ExitStack() as stack, ThreadPoolExecutor(args.jobs) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for _ in range(args.jobs):
            copies.put(stack.enter_context(copied()))
        runs = pool.map(lambda bug: run(bug, copies, failing, args.limit), bugs)
        for bug, (verdict, seconds) in zip(bugs, runs, strict=True):
            _print(f"{verdict:8}  {bug.file}: {bug.effect}  ({seconds:.0f} s)")
            caught += verdict == "caught"
    _print(f"{caught} of {len(bugs)} caught")
    return int(caught < args.at_least)


def stale(bug: Bug) -> list[str]:
    """Return why an entry does not match the project, a line for each reason."""
    path = ROOT / bug.file
    if not path.is_file():
        return [f"{bug.file}: there is no such file"]
    count = path.read_text("utf-8").count(bug.original)
    problems = [] if count == 1 else [f"{bug.file}: occurs {count} times, not once: {bug.original}"]
    absent = [name for name in bug.test_paths if not (ROOT / name.partition("::")[0]).exists()]
    return problems + [f"{bug.file}: there are no tests at {name}" for name in absent]


def control(bugs: Sequence[Bug], limit: float) -> list[str]:
    """Return the tests of these bugs that fail without any bug.

    Raises:
        SystemExit: if they cannot run, or would import another copy of the project.
    """
    tests = tuple(dict.fromkeys(name for bug in bugs for name in bug.test_paths))
    with copied() as copy:
        imported = _python(copy, ("-c", "import suffice; print(suffice.__file__)"), None, limit)
        if not Path(imported.stdout.strip()).is_relative_to(copy):
            raise SystemExit(f"a copy of the project imports another one: {imported.stdout}")
        kernels = _compile(copy) if any(bug.native for bug in bugs) else None
        result = _python(copy, (*PYTEST, *tests), kernels, limit)
    lines = result.stdout.splitlines()
    failing = [line.split()[1] for line in lines if line.startswith("FAILED ")]
    failed = result.returncode == FAILED
    if result.returncode not in (PASSED, FAILED) or (failed and not failing):
        raise SystemExit(f"the tests cannot run without a bug:\n{result.stdout[-2000:]}")
    return failing


def run(
    bug: Bug, copies: SimpleQueue[Path], deselected: Sequence[str], limit: float
) -> tuple[str, float]:
    """Return "caught", "SURVIVED" or "error", and the seconds it took.

    Args:
        bug: the bug to seed.
        copies: of the project, without a bug; one is taken and put back as it was.
        deselected: tests that do not run.
        limit: seconds that its tests may take.
    """
    options = [f"--deselect={test}" for test in deselected]
    start, copy = time.monotonic(), copies.get()
    whole = (copy / bug.file).read_bytes()
    try:
        _replace(copy, bug.file, bug.original, bug.replacement)
        kernels = _compile(copy) if bug.native else None
        result = _python(copy, (*PYTEST, "-x", *options, *bug.test_paths), kernels, limit)
        verdicts = {PASSED: "SURVIVED", FAILED: "caught", INTERRUPTED: "caught"}
        crashed = "caught" if result.returncode < 0 else "error"
        verdict, output = verdicts.get(result.returncode, crashed), result.stdout
    except subprocess.TimeoutExpired:
        verdict, output = "caught", ""  # it hangs, which is told from being slow by the control
    except (OSError, subprocess.SubprocessError) as error:
        verdict, output = "error", _error_output(error)
    finally:
        (copy / bug.file).write_bytes(whole)
        copies.put(copy)
    if verdict == "error":
        print(output, file=sys.stderr)  # noqa: T201
    return verdict, time.monotonic() - start


@contextmanager
def copied() -> Iterator[Path]:
    """Provide a copy of the project, deleted at the end of the block."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve() / "project"
        shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
        startup = copy / "build" / "startup"
        startup.mkdir(parents=True)
        (startup / "sitecustomize.py").write_text(SITECUSTOMIZE)
        yield copy


def _replace(copy: Path, file: str, original: str, replacement: str) -> None:
    path = copy / file
    path.write_text(path.read_text("utf-8").replace(original, replacement), "utf-8")


def _compile(copy: Path) -> Path:
    """Compile the sources of a copy for this processor's best set; return the library's path."""
    build = copy / "build" / "native"
    if not build.exists():
        _replace(copy, *LOWER_LEVEL)
        _leave_out_sets(copy)
    for args in (("-S", copy, "-B", build), ("--build", build)):
        subprocess.run(("cmake", *map(str, args)), check=True, capture_output=True, text=True)
    return build / "_kernels.so"


def _leave_out_sets(copy: Path) -> None:
    """Leave all sets of instructions out of the build but the best one here and the portable one.

    Each is a compilation of all kernels, but for AMX's, which are AVX-512's with another attention.
    """
    sets = library.library().suffice_isas().decode().split()
    for path, line in (
        (copy / "CMakeLists.txt", r"^ *add_kernels\((\w+)[^)]*\)"),
        (copy / "suffice/csrc/dispatch.cpp", r"^ *if \(processor\.\w+\) add\((\w+)::kernels\);"),
    ):
        keep = partial(_keep, {sets[0], "portable", *(["avx512"] if sets[0] == "amx" else [])})
        path.write_text(re.sub(line, keep, path.read_text(), flags=re.MULTILINE))


def _keep(sets: set[str], line: re.Match[str]) -> str:
    return line[0] if line[1] in sets else ""


def _python(
    copy: Path, args: Sequence[str], kernels: Path | None, limit: float
) -> subprocess.CompletedProcess[str]:
    """Run Python on the modules of a copy, with these kernels or those of the working tree."""
    kernels = kernels or library._path()
    siblings = (str(path.parent) for path in copy.glob("*/pyproject.toml"))
    paths = (
        str(copy / "build" / "startup"),
        str(copy),
        *siblings,
        os.environ.get("PYTHONPATH", ""),
    )
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if kernels is not None:
        environment[library.OVERRIDE] = str(kernels.resolve())
    return subprocess.run(
        (sys.executable, *args),
        cwd=copy,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit,
        check=False,
    )


def _error_output(error: Exception) -> str:
    """Return the message of an error, with the end of the program's output."""
    output = getattr(error, "stderr", None) or getattr(error, "stdout", None) or ""
    output = output if isinstance(output, str) else output.decode(errors="replace")
    return f"{error}\n{output[-2000:]}"


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="bugs whose file or effect contains this text")
    parser.add_argument("--jobs", type=int, default=1, help="how many run at a time")
    parser.add_argument("--list", action="store_true", help="show the bugs and run none")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for the tests of a bug")
    parser.add_argument("--at-least", type=int, default=0, help="how many have to be caught")
    parser.add_argument(
        "--no-control", action="store_true", help="skip the run of all tests without a bug"
    )
    return parser.parse_args()


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    raise SystemExit(main())
