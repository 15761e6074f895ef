"""Every example runs as it is and prints something; notebooks run from first cell to last."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from suffice.patterns import Pattern
from tests.few_digits import use_few_digits

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Matplotlib

FOLDER = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))
TRAIN_LONG = ("own_gpt.py", "own_trainer.py")
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
SIZES = ("SEEDS, EPOCHS = 4, 2", "SEEDS, EPOCHS = 3, 1")  # as committed, and as tested


def code_cells(name):
    notebook = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys, brief):
    """A function that runs a file as a program without a display and returns what it prints."""
    monkeypatch.chdir(tmp_path)
    use_few_digits(monkeypatch)
    monkeypatch.setenv("MPLBACKEND", "agg")
    registered = dict(Pattern.table)

    def run_file(path):
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out.strip()

    yield run_file
    Pattern.table.clear()
    Pattern.table.update(registered)  # without the patterns that examples define


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in TRAIN_LONG else n for n in SCRIPTS]
)
def test_script_runs(name, run):
    assert run(FOLDER / name)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_runs(name, run, tmp_path):
    cells = code_cells(name)
    assert len(cells) > 2
    script = tmp_path / "notebook.py"
    code = "\n\n".join("".join(cell["source"]) for cell in cells)
    script.write_text(code.replace(*SIZES), encoding="utf-8")
    assert run(script)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_committed_notebook_has_outputs_and_no_errors(name):
    outputs = [output for cell in code_cells(name) for output in cell["outputs"]]
    assert outputs
    assert all(output["output_type"] != "error" for output in outputs)


def test_every_example_is_listed():
    listing = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [name for name in (*SCRIPTS, *NOTEBOOKS) if f"`{name}`" not in listing] == []
