"""The trainings of the atlas: rates first, then all rows of a seed, and what is decided no more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from suffice.comparison.jobs import Execution
from suffice.comparison.results import write_cell
from suffice.comparison.tuning import FIRST_SEED, trial_path
from suffice.train.recipes import recipe
from suffice_papers.atlas import grid, training
from suffice_papers.atlas.grid import atlas_table
from suffice_papers.atlas.training import RATES, following, train, with_rates
from suffice_papers.folder import claim
from suffice_papers.recipes import RECIPES
from suffice_papers.request import request_cells
from suffice_papers.results import gather
from tests.comparison.synthetic import make_cell, solving

LOWER, UPPER = "atlas-mqar8-70k", "atlas-mqar16-70k"
ROWS = ("standard", "mqa", "linear")


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Let tables have three rows, tiny data, and nothing published."""
    for name in ("atlas_mqar8_70k", "atlas_mqar16_70k"):
        chosen = recipe(name)
        tiny = replace(
            chosen,
            task_options=tuple((dict(chosen.task_options) | {"rows": 64}).items()),
            training=replace(chosen.training, epochs=2),
        )
        monkeypatch.setitem(RECIPES, name, lambda scale="paper", tiny=tiny: tiny)
    monkeypatch.setattr(grid, "settings", lambda _: ROWS)
    monkeypatch.setattr("suffice_papers.published.FOLDER", tmp_path / "none")
    monkeypatch.setattr(training, "RATES", RATES[:2])
    for cached in (grid.atlas_table, grid.twins):
        cached.cache_clear()
    yield
    for cached in (grid.atlas_table, grid.twins):
        cached.cache_clear()


def request_of(name, folder):
    return with_rates(request_cells(atlas_table(name), out=folder / name))


def filled(name, folder, solved, seeds):
    """The request of a table whose first seeds solve it so often."""
    request = request_cells(atlas_table(name), out=folder / name)
    claim(request.folder, request.plan, command="suffice", started="2025", threads=1)
    for row, count in solved.items():
        for seed in range(seeds):
            cell = make_cell(row, 4, seed, epochs=4)
            write_cell(request.folder, solving(cell, seed < count))
    return request.again()


def test_rates_are_chosen_then_all_rows_are_trained_from_a_seed(tmp_path):
    request = request_of(LOWER, tmp_path)
    assert request.tuned == ()
    options = Execution(quiet=True, jobs=1, minutes=1e-9)  # no cell after the rates
    words = {"console": Console(quiet=True), "command": "suffice"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "following", lambda _: [])
        request = train(request, Execution(quiet=True, jobs=1), **words)
    assert {one.mechanism for one in request.tuned} == set(ROWS)
    assert all(one.rates == RATES[:2] and len(one.losses[0]) == 1 for one in request.tuned)
    folder = tmp_path / f"{LOWER}-rates"
    assert trial_path(folder, "mqa", 4, RATES[0], FIRST_SEED).exists()
    assert following(request) == [(name, 4, 0) for name in ROWS]
    assert train(request, options, **words).finished == ()
    with pytest.MonkeyPatch.context() as patch:  # one seed
        first = lambda r: [key for key in r.missing if key[2] == 0]  # noqa: E731
        patch.setattr(training, "following", first)
        request = train(request, Execution(quiet=True, jobs=1), **words)
    assert [cell.mechanism for cell in request.finished] == sorted(ROWS)
    published = gather(
        request.plan, request.folder, list(request.finished), None, None, request.tuned
    )
    assert published.results.tuned == request.tuned
    upper = request_of(UPPER, tmp_path)  # takes the rates of the table below
    assert [one.rate for one in upper.tuned] == [one.rate for one in request.tuned]


def test_what_is_decided_gets_no_further_seed(tmp_path):
    request = filled(LOWER, tmp_path, {"standard": 5, "mqa": 5, "linear": 2}, seeds=5)
    assert following(request) == [("standard", 4, 5), ("linear", 4, 5)]
    decided = filled(LOWER, tmp_path / "x", {"standard": 5, "mqa": 5, "linear": 0}, seeds=5)
    further = decided.table.further
    assert following(decided) == [("standard", 4, 10 + n) for n in range(further)]  # alone
    begun = filled(LOWER, tmp_path / "y", {"standard": 1, "mqa": 0, "linear": 0}, seeds=1)
    assert following(begun) == [(name, 4, 1) for name in ROWS]


def test_who_fails_a_step_of_the_staircase_is_not_trained_on_the_next(tmp_path):
    filled(LOWER, tmp_path, {"standard": 3, "mqa": 2, "linear": 1}, seeds=3)
    assert following(request_of(UPPER, tmp_path)) == [("standard", 4, 0), ("mqa", 4, 0)]
