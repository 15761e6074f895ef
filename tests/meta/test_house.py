"""Rules of the project that a program can check."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import resolve_name

import pytest

from suffice.encoders import Encoder, Norm
from suffice.kernels import Kernel
from suffice.memory.past import Past
from suffice.mixing import Mixing
from suffice.patterns import Pattern
from suffice.positions import Position
from tests.meta.packages import FILES, ROOT, SIBLINGS, TESTS, TOOLS, module_name
from tools.mutants.__main__ import stale
from tools.mutants.bugs import BUGS

FAMILIES = (
    ("patterns", Pattern),
    ("encoders", Encoder),
    ("mixing", Mixing),
    ("kernels", Kernel),
    ("positions", Position),
    ("encoders", Norm),
    ("memory.past", Past),
)


def documented_files() -> set[str]:
    """Return the files of what `docs/api` lists: only there every name has a docstring."""
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs/api").glob("*.md"))
    values = [resolve_name(name) for name in re.findall(r"^::: (\S+)", pages, re.MULTILINE)]
    values += [getattr(v, name) for v in values for name in getattr(v, "__all__", ())]
    modules = {getattr(v, "__module__", None) or getattr(v, "__name__", "") for v in values}
    return {str(sys.modules[name].__file__) for name in modules if name.startswith("suffice")}


D1 = "-m ruff check --extend-select D1,D417 --ignore D105,D107"
LINT_IMPORTS = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"


@pytest.mark.lint
@pytest.mark.parametrize(
    "arguments",
    [
        ("-m", "ruff", "check", "."),
        (*D1.split(), *sorted(documented_files())),
        ("-m", "ruff", "format", "--check", "."),
        ("-c", LINT_IMPORTS),
    ],
    ids=["lint", "docstrings", "format", "imports"],
)
def test_linter_is_clean(arguments):
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, SIBLINGS))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_exports_exist():
    for path in FILES:
        if path.name == "__init__.py":
            module = import_module(module_name(path))
            absent = [n for n in getattr(module, "__all__", ()) if not hasattr(module, n)]
            assert absent == [], module.__name__


@pytest.mark.parametrize(
    ("folder", "value"),
    [
        (folder, value)
        for folder, family in FAMILIES
        for value in family.table.values()
        if value.__module__.startswith("suffice.")
    ],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_every_value_is_exported_and_has_a_definition_test(folder, value):
    assert value.__name__ in import_module(f"suffice.{folder}").__all__
    assert value.__name__ in _names_used("definitions") | _names_used(folder)


def test_every_published_mechanism_names_its_source():
    from suffice.presets import PRESETS

    for name, build in PRESETS.items():
        assert "Source:" in (build.__doc__ or ""), name
        assert "Cost:" in (build.__doc__ or ""), name


@cache
def _names_used(folder: str) -> set[str]:
    """Return the names that the tests of a folder use in code, and those of its files."""
    paths = [*(ROOT / "tests" / folder).glob("*.py")]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    files = {path.stem.removeprefix("test_").title().replace("_", "") for path in paths}
    return files | {node.id for node in nodes if isinstance(node, ast.Name)}


@dataclass(frozen=True)
class Function:
    """A function of the tests: whether it asserts something, and the names of what it calls."""

    name: str
    asserts: bool
    calls: frozenset[str]

    @classmethod
    def of(cls, tree: ast.AST, name: str) -> Function:
        asserts, calls = False, set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Assert):
                asserts |= not isinstance(node.test, ast.Constant)
            elif isinstance(node, ast.Call):
                calls.add(getattr(node.func, "attr", "") or getattr(node.func, "id", ""))
        expects = {name for name in calls if name.startswith("assert")}
        expects |= calls & {"raises", "fail", "conform"}
        return cls(name, asserts or bool(expects), frozenset(calls))

    def can_fail(self, helpers: set[str]) -> bool:
        return self.asserts or not helpers.isdisjoint(self.calls)


@pytest.mark.lint
def test_no_test_is_vacuous():
    """Every test asserts, expects an error, or calls a function of the tests that does."""
    functions = [
        (path, Function.of(node, node.name))
        for path in {*TESTS, *TOOLS}
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]
    helpers: set[str] = set()
    while more := {f.name for _, f in functions if f.can_fail(helpers)} - helpers:
        helpers |= more
    vacuous = [
        f"{path.relative_to(ROOT)}: {function.name}"
        for path, function in functions
        if path.name.startswith("test_") and function.name.startswith("test_")
        if not function.can_fail(helpers)
    ]
    assert vacuous == []


@pytest.mark.parametrize(
    ("source", "can_fail"),
    [
        ("assert True", False),
        ("'assert x == 1'", False),
        ("x = 1", False),
        ("assert x == 1", True),
        ("with pytest.raises(ValueError): f()", True),
        ("assert_close(a, b)", True),
        ("check(a)", True),
    ],
)
def test_vacuous_tests_are_recognised(source, can_fail):
    assert Function.of(ast.parse(source), "test").can_fail({"check"}) is can_fail


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.effect)
def test_seeded_bug_matches_its_file(bug):
    assert stale(bug) == []


def test_no_file_names_a_machine():
    for path in [*FILES, *TESTS, *TOOLS, ROOT / "README.md", ROOT / "DESIGN.md", ROOT / "Makefile"]:
        text = path.read_text()
        for word in ("/wo" + "rk/", "/tm" + "p/", "/ro" + "ot/"):
            assert word not in text, f"{path} holds {word}"


def test_mentioned_benchmarks_exist():
    mention = re.compile(r"benchmarks[/.]([a-z0-9]+)")
    texts = [path.read_text() for path in [*FILES, *ROOT.glob("*.md"), ROOT / "Makefile"]]
    names = {name for text in texts for name in mention.findall(text)} - {"py"}
    folder = ROOT / "benchmarks"
    present = {path.stem for path in folder.glob("*.py")} | {p.name for p in folder.iterdir()}
    absent = sorted(names - present)
    assert names
    assert absent == []
