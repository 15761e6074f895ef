"""Instructions of a product on ARM: our kernels beside llama.cpp's, counted under qemu.

Counted are all instructions of one call on one thread, the coding of activations included; no speed
follows from them. Both sides are compiled by Zig for each of our instruction sets and run by
qemu-aarch64 with a plugin that counts. llama.cpp is built from the sources of llama-cpp-python:
`plain` weights lie as in a file, `repacked` ones as llama.cpp lays them out where it can.

Run: python -m benchmarks.instructions [--llama FILE_OR_FOLDER] [--set NAME]
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from benchmarks.instructions import BUILD, FLAGS, HERE, absent, build
from benchmarks.report import CONSOLE

SOURCES = "llama-cpp-python==0.3.36"
NEWEST_INTERFACE = 8  # of qemu's plugins; older ones refuse what is newer than they are
Case = tuple[str, str, str, str]  # weights, outputs, inputs, rows
Counts = dict[tuple[Case, str], int]


def plugin() -> Path:
    """Compile the plugin for the interface of this qemu and return its path."""
    BUILD.mkdir(parents=True, exist_ok=True)
    file = BUILD / "count.so"
    for version in range(1, NEWEST_INTERFACE + 1):
        subprocess.run(
            ["cc", "-O2", "-shared", "-fPIC", f"-DINTERFACE={version}", "-o", str(file),
             str(HERE / "count.c")],
            check=True,
        )  # fmt: skip
        # qemu loads plugins before it looks for the program
        tried = subprocess.run(
            ["qemu-aarch64", "-plugin", str(file), str(BUILD / "nothing")],
            capture_output=True, text=True,
        )  # fmt: skip
        if "plugin" not in tried.stderr:
            return file
    sys.exit(f"qemu-aarch64 runs no plugins: {tried.stderr.strip()}")


def counts(counter: Path, program: Path, *words: str) -> Counts:
    """Run a program and return the instructions of its products by case and kernels."""
    done = subprocess.run(
        ["qemu-aarch64", "-cpu", "max", "-plugin", str(counter), str(program), *words],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{program.name} ended with {done.returncode}:\n{done.stderr}")
    marks = [int(line) for line in done.stderr.splitlines() if line.isdigit()]
    names = [line.split() for line in done.stdout.splitlines()]
    spent = [after - before for before, after in zip(marks[::2], marks[1::2], strict=True)]
    return {
        ((weights, *shape), kernels): count
        for (weights, kernels, *shape), count in zip(names, spent, strict=True)
    }


def sources(given: Path) -> Path:
    """Return the folder of ggml in a source distribution of llama-cpp-python, or in its tree."""
    if given.is_file():
        with tarfile.open(given) as archive:
            archive.extractall(BUILD / "sources", filter="data")
        given = BUILD / "sources"
    found = sorted(given.glob("**/ggml/src/ggml-cpu/repack.h"))
    if not found:
        sys.exit(f"{given} holds no sources of ggml; wanted are those of {SOURCES}")
    return found[0].parents[2]


def show(name: str, found: Counts) -> None:
    """Print the table of an instruction set."""
    table = Table(title=f"{name}: thousands of instructions per product", title_justify="left")
    for heading in ("weights", "matrix", "rows", "ours", "llama.cpp", "repacked", "ours / best"):
        table.add_column(heading, justify="left" if heading in ("weights", "matrix") else "right")
    for case in dict.fromkeys(case for case, _ in found):
        ours, plain, repacked = (found.get((case, k)) for k in ("ours", "plain", "repacked"))
        best = min((n for n in (plain, repacked) if n), default=None)
        weights, outputs, inputs, rows = case
        table.add_row(
            weights, f"{outputs} x {inputs}", rows,
            *(f"{n / 1e3:,.0f}" if n else "-" for n in (ours, plain, repacked)),
            f"{ours / best:.2f}" if best else "-",
        )  # fmt: skip
    CONSOLE.print(table)


def main(words: Sequence[str] | None = None) -> int:
    """Print the tables; return 1 if nothing can be counted here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama", type=Path, help=f"the source distribution of {SOURCES}")
    parser.add_argument("--set", choices=FLAGS, help="this instruction set alone")
    options = parser.parse_args(words)
    if platform.system() != "Linux":
        CONSOLE.print("Nothing is counted: qemu runs single programs on Linux alone.")
        return 1
    if missing := absent("qemu-aarch64", "cc"):
        CONSOLE.print(f"Nothing is counted: there is no {', no '.join(missing)}.")
        return 1
    counter, ours = plugin(), build("our_products", BUILD / "ours")
    ggml = sources(options.llama) if options.llama else None
    if not ggml:
        CONSOLE.print(
            "llama.cpp is left out: --llama wants its sources, which "
            f"`pip download --no-binary :all: --no-deps {SOURCES}` fetches."
        )
    for name in [options.set] if options.set else FLAGS:
        found = counts(counter, ours, name)
        if ggml:
            flags = (f"-DCMAKE_C{both}_FLAGS={FLAGS[name]}" for both in ("", "XX"))
            theirs = build("llama_products", BUILD / name, f"-DGGML={ggml}", *flags)
            found |= counts(counter, theirs)
        show(name, found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
