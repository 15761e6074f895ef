from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks import grid
from suffice.ops import OPS

CELL = next(grid.cells())


def test_every_cell_has_its_own_line():
    lines = [str(cell) for cell in grid.cells()]
    assert len(set(lines)) == len(lines)
    for word in (*grid.PATTERNS, "both", "forward", "float32", "bfloat16", "float16"):
        assert any(word in line for line in lines)


def test_a_slower_choice_is_listed(monkeypatch, tmp_path, capsys):
    cell = replace(CELL, queries=16, keys=16)
    monkeypatch.setattr(grid, "cells", lambda: iter([cell]))
    monkeypatch.setattr(grid, "choose", lambda _: OPS["matmul"])
    seconds = {"matmul": (1.1, 1.1), "fused": (1.0, 1.0)}
    monkeypatch.setattr(grid, "_times", lambda *_: seconds)
    file = tmp_path / "grid.json"
    assert grid.main(["--json", str(file)]) == 1
    assert "1 of 1 cells are slower" in capsys.readouterr().out
    (result,) = json.loads(file.read_text())["cells"]
    assert (result["op"], result["best"], result["cell"]) == ("matmul", "fused", str(cell))
    seconds["matmul"] = (1.04, 1.04)
    assert grid.main([]) == 0
    assert grid.main(["--json", str(file)]) == 1  # a cell of the file is not timed again
    with pytest.raises(SystemExit, match="measured with another threads"):
        grid.main(["--json", str(file), "--threads", "3"])


def test_a_wrong_result_is_not_timed(monkeypatch):
    wrong = replace(OPS["reference"], run=lambda q, *_: q + 1.0)
    monkeypatch.setitem(grid.OPS, "reference", wrong)
    monkeypatch.setattr(grid, "choose", lambda _: wrong)
    with pytest.raises(SystemExit, match="no speed is printed for a wrong result"):
        grid.measure(replace(CELL, queries=16, keys=16), rounds=1)
