"""Build the kernels' test program and run it on every processor that can be had or imitated.

`python -m tests.native.run` builds by Zig where `ziglang` is installed, for Linux on x86-64 and
ARM and for Windows, otherwise by the system's compiler for this machine; `--only` picks runs. Other
options go to the program: `--set`, `--function`, `--seed`, `--rounds`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "kernels_test"
X86, ARM, WINDOWS = "x86_64-linux-musl", "aarch64-linux-musl", "x86_64-windows-gnu"
WINE = "/usr/lib/wine/wine64"


@dataclass(frozen=True)
class Run:
    """A processor that the program runs on.

    Args:
        target: as Zig names it; None = this machine.
        runner: the command that imitates the processor.
        best: the instruction set that the dispatcher must choose there; None = whatever it finds.
        rounds: of random cases, fewer where they are imitated.
        flags: for the compiler.
    """

    target: str | None
    runner: tuple[str, ...] = ()
    best: str | None = None
    rounds: int = 20
    flags: str = ""


# qemu (7.2 at least) reads what masks of AVX2 leave out, and sixteen bytes where a scalar FMA reads
# four, and faults where a processor does not; Clang makes such reads of plain loops
LENIENT = "-fno-vectorize -DSUFFICE_GUARD_SLACK=32"
RUNS = {
    "native": Run(None, rounds=100),
    "haswell": Run(X86, ("qemu-x86_64", "-cpu", "Haswell"), "avx2", flags=LENIENT),
    "nehalem": Run(X86, ("qemu-x86_64", "-cpu", "Nehalem"), "portable", flags=LENIENT),
    "arm-max": Run(ARM, ("qemu-aarch64", "-cpu", "max"), "i8mm"),
    "neoverse-n1": Run(ARM, ("qemu-aarch64", "-cpu", "neoverse-n1"), "dotprod"),
    "cortex-a72": Run(ARM, ("qemu-aarch64", "-cpu", "cortex-a72"), "neon"),
    "windows": Run(WINDOWS, (WINE,)),
}


def has_zig() -> bool:
    """Return whether the compiler of all platforms is there."""
    return importlib.util.find_spec("ziglang") is not None


def absent(run: Run) -> str:
    """Return why a run is not possible here, or ""."""
    if not shutil.which("cmake"):
        return "there is no cmake"
    if run.target and not has_zig():
        return "ziglang is not installed"
    if not (run.target or has_zig() or shutil.which("c++")):
        return "there is no compiler"
    if run.runner and not shutil.which(run.runner[0]):
        return f"there is no {run.runner[0]}"
    return ""


def _wheels() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wheels", ROOT / "packaging" / "wheels.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


@lru_cache
def program(target: str | None, flags: str) -> Path:
    """Build the program for a target and return its path."""
    wheels, folder = _wheels(), BUILD / ((target or "native") + flags.replace(" ", ""))
    native_target = X86 if platform.machine() == "x86_64" else ARM
    if has_zig() and (target or sys.platform == "linux"):
        name = target or native_target
        system = "Windows" if name == WINDOWS else "Linux"
        processor = name.split("-")[0]
        build = wheels.configure(
            wheels.Platform(tag=name, target=name, system=system, processor=processor), folder
        )
    else:
        build = folder / "build"
        wheels.run("cmake", "-S", ROOT, "-B", build, "-DCMAKE_BUILD_TYPE=Release")
    wheels.run("cmake", "-S", ROOT, "-B", build, f"-DCMAKE_CXX_FLAGS={flags}")
    wheels.run("cmake", "--build", build, "--parallel", "--target", "kernels_test")
    return next(
        build / name for name in ("kernels_test", "kernels_test.exe") if (build / name).exists()
    )


def execute(run: Run, options: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run the program on a processor; stdout holds all that was printed."""
    words = [*run.runner, program(run.target, run.flags), *options]
    if "--rounds" not in options:
        words += ["--rounds", str(run.rounds)]
    with tempfile.TemporaryDirectory() as prefix:  # wine's, which it would keep at home
        env = {**os.environ, "WINEPREFIX": prefix, "WINEDEBUG": "-all"}
        done = subprocess.run(
            [str(word) for word in words],
            env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    chosen = done.stdout.partition("sets: ")[2].partition(";")[0].split()
    if run.best and chosen[:1] != [run.best]:
        done.stdout += f"the dispatcher found {chosen}, not {run.best} first\n"
        done.returncode = 1
    return done


def say(text: str) -> None:
    """Print a part of the report."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(words: Sequence[str] | None = None) -> None:
    """Run all that is possible, print the last lines, end with 1 if any has failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=RUNS, help="this run; may be repeated")
    settings, options = parser.parse_known_args(words)
    failed = False
    for name, run in RUNS.items():
        if settings.only and name not in settings.only:
            continue
        reason = absent(run)
        if reason:
            say(f"== {name}: skipped, {reason}")
            continue
        done = execute(run, options)
        failed = failed or done.returncode != 0
        say(f"== {name}: {' '.join(run.runner) or 'this processor'}\n{done.stdout}")
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
