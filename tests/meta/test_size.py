"""The most lines, files, options, names and dependencies: numbers that only fall.

A number rises only in a commit that lowers another by as much. `python -m tests.meta.test_size`
prints the table as it is now.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests.meta.packages import FILES, ROOT, TESTS, TOOLS

pytestmark = pytest.mark.lint

MOST_LINES, MOST_TEST_LINES = 71_542, 71_181
MOST_SIBLING_LINES = 11_500  # of all siblings together
MOST_TOOL_LINES = 4_058
MOST_FILES, MOST_OPTIONS = 304, 171
MOST_PUBLIC_NAMES, MOST_DEPENDENCIES = 328, 11
MOST_DATA_BYTES = 108_524
LINES = {
    ".": 1101,
    "choose": 2934,
    "cli": 4215,
    "comparison": 10388,
    "convert": 5451,
    "data": 3440,
    "encoders": 1036,
    "export": 1801,
    "generate": 1247,
    "hf": 2593,
    "kernels": 1078,
    "layers": 3270,
    "loading": 754,
    "memory": 1156,
    "mixing": 1048,
    "models": 7433,
    "ops": 6282,
    "papers": 5078,
    "patterns": 1481,
    "positions": 728,
    "presets": 1392,
    "quantise": 532,
    "runtime": 370,
    "spec": 925,
    "testing": 981,
    "text": 2213,
    "train": 4119,
    "utils": 2474,
    "view": 1470,
}
"""By package; `.` holds the modules beside the packages."""


def lines_by_package(root: Path) -> Counter[str]:
    """Return the lines of Python of each package directly below `root`."""
    lines: Counter[str] = Counter()
    for path in root.rglob("*.py"):
        package = path.relative_to(root).parts[0] if path.parent != root else "."
        lines[package] += lines_of(path)
    return lines


def lines_of(path: Path) -> int:
    """Return how many lines a file has."""
    return path.read_text("utf-8").count("\n")


def options() -> int:
    """Return how many options the command line declares."""
    calls = (
        node
        for path in (ROOT / "suffice").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
    )
    return sum(ast.unparse(call.func).rpartition(".")[2] == "Option" for call in calls)


def public_names() -> int:
    """Return how many names the `__all__` of the packages list."""
    return sum(
        len(node.value.elts)
        for path in (ROOT / "suffice").rglob("__init__.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )


def sizes() -> dict[str, int]:
    """Return every number that has a limit, but for those of the packages."""
    package = ROOT / "suffice"
    data = (p for p in package.rglob("*") if p.suffix in (".json", ".csv", ".js", ".css", ".html"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {
        "MOST_LINES": lines_by_package(package).total(),
        "MOST_TEST_LINES": sum(map(lines_of, [ROOT / "conftest.py", *TESTS])),
        "MOST_SIBLING_LINES": sum(lines_of(p) for p in FILES if not p.is_relative_to(package)),
        "MOST_TOOL_LINES": sum(lines_of(path) for path in TOOLS if path not in TESTS),
        "MOST_FILES": len(list(package.rglob("*.py"))),
        "MOST_OPTIONS": options(),
        "MOST_PUBLIC_NAMES": public_names(),
        "MOST_DEPENDENCIES": len(project["dependencies"]),
        "MOST_DATA_BYTES": sum(path.stat().st_size for path in data),
    }


def test_no_number_rises():
    assert {name: now for name, now in sizes().items() if now > globals()[name]} == {}


def test_no_package_grows():
    now = lines_by_package(ROOT / "suffice")
    assert {p: count for p, count in now.items() if count > LINES.get(p, 0)} == {}


if __name__ == "__main__":
    print(sizes(), dict(sorted(lines_by_package(ROOT / "suffice").items())), sep="\n")  # noqa: T201
