"""The rules of the house that a program can check."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from suffice.encoders import Encoder, Norm
from suffice.kernels import Kernel
from suffice.mixing import Mixing
from suffice.past import Past
from suffice.patterns import Pattern
from suffice.positions import Position

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "suffice").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
FAMILIES = (
    ("patterns", Pattern),
    ("encoders", Encoder),
    ("mixing", Mixing),
    ("kernels", Kernel),
    ("positions", Position),
    ("encoders", Norm),
    ("past", Past),
)


def run(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_lint_is_clean():
    run("ruff", "check", ".")


def test_format_is_kept():
    run("ruff", "format", "--check", ".")


def test_layers_are_kept():
    code = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if path.name == "__init__.py"],
    ids=lambda path: path.parent.relative_to(ROOT).as_posix(),
)
def test_exports_exist(path):
    module = import_module(path.parent.relative_to(ROOT).as_posix().replace("/", "."))
    assert [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)] == []


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


def _names_used(folder: str) -> set[str]:
    """The names that tests of a folder use, imports and texts aside, and those of its files."""
    paths = [*(ROOT / "tests" / folder).glob("*.py")]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    files = {path.stem.removeprefix("test_").title().replace("_", "") for path in paths}
    return files | {node.id for node in nodes if isinstance(node, ast.Name)}


def _name_called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", "") or getattr(node.func, "id", "")


def _can_fail(function: ast.AST, helpers: set[str]) -> bool:
    """Whether a function asserts something that is no constant, or calls what does."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant):
            return True
        name = _name_called(node)
        if name in helpers or name.startswith("assert") or name in ("raises", "fail", "conform"):
            return True
    return False


def test_no_test_is_vacuous():
    """Every test asserts, expects an error, or calls a function of the tests that does."""
    trees = {path: ast.parse(path.read_text()) for path in (ROOT / "tests").rglob("*.py")}
    functions = [n for t in trees.values() for n in ast.walk(t) if isinstance(n, ast.FunctionDef)]
    helpers: set[str] = set()
    while True:  # helpers of helpers
        found = {f.name for f in functions if f.name not in helpers and _can_fail(f, helpers)}
        if not found:
            break
        helpers |= found
    vacuous = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path, tree in trees.items()
        if path.name.startswith("test_")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if not _can_fail(node, helpers)
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
def test_a_vacuous_test_is_told_from_others(source, can_fail):
    assert _can_fail(ast.parse(source), {"check"}) is can_fail


def test_the_project_names_no_machine():
    for path in [*FILES, *TESTS, ROOT / "README.md", ROOT / "DESIGN.md", ROOT / "Makefile"]:
        text = path.read_text()
        for word in ("/wo" + "rk/", "/tm" + "p/", "/ro" + "ot/"):
            assert word not in text, f"{path} holds {word}"


def test_the_benchmarks_that_are_named_exist():
    named = re.compile(r"benchmarks[/.]([a-z]+)")
    texts = [path.read_text() for path in [*FILES, *ROOT.glob("*.md"), ROOT / "Makefile"]]
    names = {name for text in texts for name in named.findall(text)} - {"py"}
    absent = [name for name in names if not (ROOT / "benchmarks" / f"{name}.py").is_file()]
    assert names
    assert absent == []
