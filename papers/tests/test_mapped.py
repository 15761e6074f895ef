"""`suffice reproduce attention-maps`: maps printed, drawn, and the weights behind them."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from papers.tests.looked import ONE, keep, kept, register
from suffice_papers.maps import request_maps

reproduce = import_module("suffice_papers.cli")
PLAIN = ("--no-report", "--quiet")


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Let the registry be two tables of the digits and what their models look at."""
    register(monkeypatch, tmp_path)


def test_maps_are_printed_drawn_and_written(suffice):
    kept()
    result = suffice("reproduce", "maps")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Attention maps of tiny" in result.stdout
    assert result.stdout.endswith("report: runs/reproduce/maps/report\n")
    suffice("reproduce", "maps", *PLAIN)
    folder = Path("runs/reproduce/maps/report")
    names = {path.name for path in folder.iterdir()}
    assert {"maps.json", "maps.csv", "maps-tiny-small-standard-h2.svg"} <= names
    records = json.loads(suffice("reproduce", "maps", "--json", *PLAIN).stdout)
    assert records == json.loads((folder / "maps.json").read_text())
    result = suffice("reproduce", "maps", "--csv", *PLAIN)
    assert result.stdout == (folder / "maps.csv").read_text()


def test_cells_without_weights_are_listed_or_trained(suffice, monkeypatch):
    result = suffice("reproduce", "maps")
    assert result.exit_code == 2
    assert "there are no trained weights in runs/reproduce/tiny-small" in result.message
    assert "suffice reproduce maps --scale small --run" in result.message
    trained = []

    def run_cells(plan, keys, folder, means, *, console, command):
        trained.append(keys)
        keep(request_maps(ONE, scale="small", heads=None, out=folder))

    monkeypatch.setattr("suffice_papers.folder.run_cells", run_cells)
    result = suffice("reproduce", "maps", "--run", *PLAIN)
    assert result.exit_code == 0
    assert trained == [[("standard", 2, 0), ("super_attention", 2, 0)]]
    suffice("reproduce", "maps", "--run", *PLAIN)
    assert len(trained) == 1
    result = suffice("reproduce", "both", *PLAIN)
    listed = "standard of other, super_attention of other"
    assert result.stdout.endswith(
        f"There are no weights of {listed}: suffice reproduce both --run\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("maps", "--seeds", 2),
            "maps shows one model of each mechanism, of seed 0; leave --seeds out",
        ),
        (("maps", "--publish"), "maps shows one model of each mechanism"),
        (("both", "--out", "x"), "--out is the working folder of one table; give it with one of"),
    ],
)
def test_what_maps_do_not_have_is_refused(suffice, words, message):
    said = suffice("reproduce", *words)
    assert said.exit_code == 2
    assert message in said.message
