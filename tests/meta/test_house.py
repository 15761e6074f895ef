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
FAMILIES = {
    "patterns": Pattern,
    "encoder": Encoder,
    "mixing": Mixing,
    "kernels": Kernel,
    "positions": Position,
    "norms": Norm,
    "past": Past,
}


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
        for folder, family in FAMILIES.items()
        for value in family.table.values()
        if value.__module__.startswith("suffice.")
    ],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_every_value_is_exported_and_has_a_definition_test(folder, value):
    assert value.__name__ in import_module(f"suffice.{folder}").__all__
    words = "".join(path.read_text() for path in (ROOT / "tests" / "definitions").glob("*.py"))
    assert value.__name__ in words


def test_every_published_mechanism_names_its_source():
    from suffice.presets import PRESETS

    for name, build in PRESETS.items():
        assert "Source:" in (build.__doc__ or ""), name
        assert "Cost:" in (build.__doc__ or ""), name


COMPARES = ("assert", "raises", "conform(")


def test_no_test_is_vacuous():
    """Every test asserts, expects an error, or calls a function of its file that does."""
    for path in TESTS:
        functions = {
            node.name: ast.unparse(node)
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef)
        }
        helpers = [f"{n}(" for n, text in functions.items() if any(w in text for w in COMPARES)]
        for name, text in functions.items():
            if name.startswith("test_"):
                body = text.partition(":")[2]
                assert any(w in body for w in (*COMPARES, *helpers)), f"{path.name}: {name}"


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
