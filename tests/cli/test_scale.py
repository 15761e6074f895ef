"""`suffice compare --scale`, from the words of a command line to what lies on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from suffice import recipes
from suffice.comparison.plan import read_plan
from suffice.comparison.results import read_results
from suffice.data import vision
from suffice.train.recipes import SMALL, digits_vit

SHORT = ("--mechanisms", "standard,efficient", "--seeds", "1", "--epochs", "1", "--quiet")


@pytest.fixture(autouse=True)
def twin(monkeypatch):
    """Give the digits a small twin, for it is the recipe that needs no files."""

    def digits(scale: str = "paper") -> recipes.Recipe:
        small = {"d_model": 16, "mlp_width": 16, "depth": 1}
        return digits_vit().at(scale, title="Digits, ViT of 1 block", model=small)

    monkeypatch.setitem(recipes.RECIPES, "digits_vit", digits)


def test_a_small_comparison_runs_the_same_code_and_says_so(suffice, brief):
    result = suffice("compare", "--scale", "small", *SHORT)
    assert result.exit_code == 11
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("digits_vit-small-")
    results = read_results(folder / "results.json")
    assert (results.scale, results.title) == ("small", f"Digits, ViT of 1 block; {SMALL}")
    assert {cell.parameters_layer for cell in results.cells} == {4 * 272, 2 * 272}
    assert f"- {SMALL.capitalize()}." in result.stdout
    assert json.loads((folder / "plan.json").read_text())["recipe"]["scale"] == "small"


def test_it_goes_on_at_its_scale_and_at_no_other(suffice, brief):
    assert suffice("compare", "--scale", "small", *SHORT, "--out", "run").exit_code == 11
    result = suffice("compare", "--resume", "--out", "run", "--quiet", "--json")
    assert (result.exit_code, json.loads(result.stdout)["results"]["scale"]) == (11, "small")
    before = (Path("run") / "plan.json").read_bytes()
    result = suffice("compare", "--resume", "--out", "run", "--scale", "paper", "--quiet")
    assert result.exit_code == 2
    assert "scale was 'small' and is 'paper'" in " ".join(result.stderr.split())
    assert (Path("run") / "plan.json").read_bytes() == before
    assert read_plan(Path("run")).recipe["scale"] == "small"


def test_the_small_twin_asks_for_rows_that_the_task_has(monkeypatch):
    def zeros(content: bytes, shape: tuple[int, ...], name: str) -> torch.Tensor:
        return torch.zeros(9_000, *shape, dtype=torch.uint8)

    monkeypatch.setattr(vision, "read", lambda *_, **__: b"")
    monkeypatch.setattr(vision, "parse_idx", zeros)
    task = vision.mnist(**dict(recipes.recipe("mnist_v2", scale="small").task_options))
    assert [len(split) for split in (task.train, task.validation, task.test)] == [8_000, 900, 2_000]
