"""Every example runs as it is; notebooks cell by cell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))
BOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def ran(code, folder):
    """Run code as a program of its own, without a display."""
    told = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", *code],
        cwd=folder,
        env={**os.environ, "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    return told.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_and_says_something(name, tmp_path):
    assert ran([str(FOLDER / name)], tmp_path).strip()


@pytest.mark.parametrize("name", BOOKS)
def test_a_notebook_runs_from_its_first_cell_to_its_last(name, tmp_path):
    book = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 2
    (tmp_path / "book.py").write_text("\n\n".join(cells), encoding="utf-8")
    assert ran(["book.py"], tmp_path).strip()


def test_a_notebook_was_run_before_it_was_kept():
    for name in BOOKS:
        book = json.loads((FOLDER / name).read_text(encoding="utf-8"))
        code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
        assert any(cell["outputs"] for cell in code), name
        assert all(
            output["output_type"] != "error" for cell in code for output in cell["outputs"]
        ), name


def test_every_example_is_listed():
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [name for name in (*SCRIPTS, *BOOKS) if f"`{name}`" not in listed] == []
