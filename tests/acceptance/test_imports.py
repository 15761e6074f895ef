"""T13: the package imports with torch alone, without warnings, and touches no accelerator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAKES = ("flash_attn", "xformers", "triton", "transformers")
HEAVY = (
    "scipy",
    "sklearn",
    "matplotlib",
    "rich",
    "typer",
    "safetensors",
    "pandas",
    "sympy.plotting",
)

SESSION = """
import sys
import suffice
import torch
from suffice import Attention, preset
for name in ("standard", "optimised", "efficient", "gqa", "mqa"):
    Attention(preset(name, 8, 4, causal=True))(torch.randn(2, 5, 8)).sum().backward()
Attention(preset("super_attention", 8, 4, length=5))(torch.randn(2, 5, 8)).sum().backward()
print(suffice.__version__)
"""

MODULES = """
import sys
import torch
before = set(sys.modules)
import suffice
new = {name.split(".")[0] for name in set(sys.modules) - before} - {"suffice"}
print(*sorted(new - set(sys.stdlib_module_names)))
print(*sorted(name for name in sys.modules if name.startswith("suffice.")))
"""


def python(*arguments, path=()):
    found = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": ":".join(map(str, [*path, ROOT])), "OMP_NUM_THREADS": "1", "PATH": ""},
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found


def test_broken_accelerators_and_warnings(tmp_path):
    """Modules of these names raise when imported; any warning is an error; there is no PATH."""
    for name in FAKES:
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name} was imported')\n")
    found = python("-W", "error", "-c", SESSION, path=[tmp_path])
    assert found.stdout.strip() == "0.1.0"
    assert found.stderr == ""


@pytest.fixture(scope="module")
def modules():
    foreign, own = python("-c", MODULES).stdout.split("\n")[:2]
    return foreign.split(), own.split()


def test_import_adds_only_the_standard_library_to_torch(modules):
    assert modules[0] == []


@pytest.mark.parametrize(
    "package", ["testing", "train", "measure", "data", "cli", "models", "text"]
)
def test_import_leaves_the_rest_of_the_package_alone(modules, package):
    assert not [name for name in modules[1] if name.split(".")[1] == package]
    assert "suffice.layers.attention" in modules[1]
