"""Run the suite as other machines would, and print the last line of each run.

`python -m tests.settings --only avx2 --only load tests/ops` runs a part in two settings; without
`--only` every setting, without paths the whole suite. Other options go to pytest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from suffice.ops.native import library

ROOT = Path(__file__).resolve().parents[1]
# torch, oneDNN and MKL as on a processor without AVX-512; ours are chosen by SUFFICE_ISA
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
# pytest keeps the assertions of test modules and says with -O that other modules lose theirs
KEPT = "-W 'ignore:assertions not in test modules:pytest.PytestConfigWarning'"


@dataclass(frozen=True)
class Setting:
    """What differs from `python -m pytest`; `isa` is the instruction set of the native kernels."""

    isa: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    one_core: bool = False
    load: bool = False

    def absent(self) -> str:
        """Return why this machine cannot imitate the setting, or ""."""
        capability = torch.backends.cpu.get_cpu_capability()
        if self.environment is AVX2 and capability not in ("AVX2", "AVX512"):
            return f"this processor has no AVX2 (torch runs {capability})"
        if self.isa and not library.available():
            return "" if self.environment else f"no native kernels: {library.why_not()}"
        if self.isa and self.isa not in isas():
            return f"this processor's kernels are {' '.join(isas())}"
        if self.one_core and not hasattr(os, "sched_setaffinity"):
            return "this system binds no process to a core"
        return ""


SETTINGS = {
    "best": Setting(),
    "avx2": Setting(isa="avx2", environment=AVX2),
    "portable": Setting(isa="portable"),
    "one-core": Setting(one_core=True),
    "load": Setting(load=True),
    # not -O: the programs that tests start are optimised, too
    "optimised": Setting(environment={"PYTHONOPTIMIZE": "1", "PYTEST_ADDOPTS": KEPT}),
}


def isas() -> list[str]:
    """Return the instruction sets that the native kernels can use here, the best one first."""
    return library.library().suffice_isas().decode().split()


@contextmanager
def busy_cores() -> Iterator[None]:
    """Keep every core busy with a process of its own."""
    with ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            process = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", "while True: pass"])
            )
            stack.callback(process.kill)
        yield


def bind() -> None:
    """Bind this process to the first of its cores."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def run(setting: Setting, arguments: list[str]) -> tuple[int, str]:
    """Run pytest; return its exit code and its last line."""
    environment = os.environ | setting.environment
    if setting.isa and library.available():
        environment[library.ISA] = setting.isa
    last = "nothing was printed"
    with ExitStack() as stack:
        if setting.load:
            stack.enter_context(busy_cores())
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "pytest", "-n", "auto", "--dist", "worksteal", *arguments],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=bind if setting.one_core else None,
            )
        )
        for line in process.stdout:
            _print(line.rstrip("\n"))
            last = line.strip() or last
    return process.returncode, last


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--only", action="append", choices=SETTINGS, help="one setting; repeatable")
    options, arguments = parser.parse_known_args()
    failed, lines = False, []
    for name in options.only or SETTINGS:
        if reason := SETTINGS[name].absent():
            lines.append(f"{name:10} not run: {reason}")
            continue
        _print(f"== {name}")
        code, last = run(SETTINGS[name], arguments)
        failed |= code != 0
        lines.append(f"{name:10} {last}")
    kernels = " ".join(isas()) if library.available() else f"none, {library.why_not()}"
    _print(f"\nnative kernels: {kernels}; torch: {torch.backends.cpu.get_cpu_capability()}")
    _print("\n".join(lines))
    return int(failed)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
