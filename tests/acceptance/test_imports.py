"""T13: the package imports with torch alone, without warnings, and touches no accelerator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAKES = ("flash_attn", "xformers", "triton", "transformers")

SESSION = """
import sys
import torch
before = set(sys.modules)
import suffice
from suffice import Attention, preset
new = {name.split(".")[0] for name in set(sys.modules) - before} - {"suffice"}
print(*sorted(new - set(sys.stdlib_module_names)))
print(*sorted(name for name in sys.modules if name.startswith("suffice.")))
for name in ("standard", "optimised", "efficient", "gqa", "mqa"):
    Attention(preset(name, 8, 4, causal=True))(torch.randn(2, 5, 8)).sum().backward()
Attention(preset("super_attention", 8, 4, length=5))(torch.randn(2, 5, 8)).sum().backward()
from suffice.patterns import Causal
from suffice.view import draw, text
from suffice.view.picture import svg
svg(draw(Causal(), 4)), text(Causal(), 4)
print("matplotlib" in sys.modules, suffice.__version__)
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """Modules of these names raise when imported; any warning is an error; there is no PATH."""
    fakes = tmp_path_factory.mktemp("fakes")
    for name in FAKES:
        (fakes / f"{name}.py").write_text(f"raise RuntimeError('{name} was imported')\n")
    path = f"{fakes}:{ROOT}"
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", SESSION],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PATH": ""},
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    return process.stdout.split("\n")


def test_broken_accelerators_and_warnings(session):
    assert session[2].endswith("0.1.0")


def test_svg_and_text_need_no_matplotlib(session):
    assert session[2].startswith("False")


def test_import_adds_only_the_standard_library_to_torch(session):
    assert session[0] == ""


@pytest.mark.parametrize(
    "package", ["testing", "train", "comparison", "data", "cli", "models", "text"]
)
def test_import_leaves_the_rest_of_the_package_alone(session, package):
    modules = session[1].split()
    assert not [name for name in modules if name.split(".")[1] == package]
    assert "suffice.layers.attention" in modules
