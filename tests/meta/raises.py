"""Which raise statements of the package a test has matched by its message.

A run of the whole suite fails if one was not; its processes hand each other what they met.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "suffice"

TESTS = Path(__file__).resolve().parents[1]

MATCHED: set[tuple[Path, int] | None] = set()


@cache
def statements(path: Path) -> tuple[tuple[int, int], ...]:
    """Return the first and last line of every raise statement of a file that raises anew."""
    tree = ast.parse(path.read_text())
    raises = (node for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc)
    return tuple(sorted((node.lineno, node.end_lineno) for node in raises))


def all_statements() -> set[tuple[Path, int]]:
    """Return (file, first line) of every raise statement of the package."""
    files = PACKAGE.rglob("*.py")
    return {(path, first) for path in files for first, _ in statements(path)}


def statement_of(trace) -> tuple[Path, int] | None:
    """Return the raise statement of the package at the end of a traceback; None elsewhere."""
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    path = Path(trace.tb_frame.f_code.co_filename)
    if PACKAGE not in path.parents:
        return None
    line = trace.tb_lineno
    return next(((path, first) for first, last in statements(path) if first <= line <= last), None)


def unmatched() -> list[str]:
    """Return file:line of each raise statement that no test has matched."""
    missing = sorted(all_statements() - MATCHED)
    return [f"{path.relative_to(PACKAGE.parent)}:{line}" for path, line in missing]


def is_whole(ran: set[Path]) -> bool:
    """Return whether these files are all files of tests."""
    return ran >= set(TESTS.rglob("test_*.py"))
