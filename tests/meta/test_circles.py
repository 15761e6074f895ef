"""Modules import each other in one direction, imports for type checkers included."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.meta.packages import FILES, module_name

pytestmark = pytest.mark.lint

MODULES = {module_name(path): path for path in FILES}


def imported(source: Path) -> set[str]:
    """Return the modules of the package that a module names in its imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {
                full if (full := f"{node.module}.{alias.name}") in MODULES else node.module
                for alias in node.names
            }
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names & MODULES.keys()


def test_no_circle_of_imports():
    graph = {name: imported(source) - {name} for name, source in MODULES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from error
