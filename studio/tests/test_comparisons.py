"""Results as the page shows them."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from itertools import groupby

import pytest

from suffice.comparison.plan import Plan
from suffice.comparison.results import write_cell, write_results
from suffice.errors import ConfigError, DataError
from suffice.train.recipes import recipe
from suffice_papers.published import path_of
from suffice_studio.comparisons import describe, front, list_comparisons, read
from tests.comparison import test_own_loop as own_loop
from tests.comparison.synthetic import realistic


@pytest.fixture(scope="module")
def results():
    return realistic(seeds=3)


@pytest.fixture
def root(tmp_path, results):
    """A folder with a finished comparison, one that was begun, and a reproduction."""
    write_results(tmp_path / "done" / "results.json", results)
    plan = Plan(
        recipe=recipe("digits_vit"), mechanisms=("standard", "efficient"), heads=(4,), seeds=2,
        baseline="standard",
    )  # fmt: skip
    for name in ("deep/begun", "empty"):
        (tmp_path / name).mkdir(parents=True)
        plan.claim(tmp_path / name, resume=False)
        (tmp_path / name / "cells").mkdir(exist_ok=True)
    for cell in results.cells:
        if cell.num_heads == 4 and cell.seed < 2 and cell.mechanism in plan.mechanisms:
            write_cell(tmp_path / "deep" / "begun", cell)
    ran = {"machine": {"cpu": "x"}, "versions": {}, "commit": None, "threads": 1}
    ran |= {"command": "suffice reproduce x", "started": "2026-01-01T00:00:00+00:00"}
    (tmp_path / "deep" / "begun" / "ran.json").write_text(json.dumps(ran))
    (tmp_path / ".git" / "done").mkdir(parents=True)
    shutil.copy(tmp_path / "done" / "results.json", tmp_path / ".git" / "done")
    return tmp_path


def test_comparisons_are_listed(root):
    in_folder = [one for one in list_comparisons((root,)) if one.root == 0]
    assert [(one.name, one.finished) for one in in_folder] == [
        ("deep/begun", False),
        ("done", True),
        ("empty", False),
    ]
    assert in_folder[0].label == "deep/begun (not finished)"
    assert list_comparisons((root / "done",))[0].name == "."
    package = [one for one in list_comparisons(()) if one.root == -1]
    assert all(path_of(one.name).exists() for one in package)
    assert (package[0].name, package[0].group) == ("v2-imdb", "Reviews")
    assert package[0].label == "IMDB reviews, 1 block, d_model 32, last 32 words"
    groups = [group for group, _ in groupby(package, key=lambda one: one.group)]
    assert len(groups) == len(set(groups)) == 5
    drawn = describe(read((), -1, "atlas-imdb-300k"))["drawn"]
    assert (drawn[0], len(drawn)) == ("standard", 6)


def test_results_of_other_commands_are_no_comparison(root):
    before = [one.name for one in list_comparisons((root,))]
    for name, content in (("plan.search", '{"budget": "state<=50%"}'), ("torn", "{")):
        (root / name).mkdir()
        (root / name / "results.json").write_text(content)
    now = [one.name for one in list_comparisons((root,))]
    assert "plan.search" not in now
    assert sorted(now) == sorted([*before, "torn"])  # opening it says what is wrong


def test_times_that_are_published_are_no_comparison():
    assert path_of("v2-edge").exists()
    assert "v2-edge" not in [one.name for one in list_comparisons(())]
    with pytest.raises(DataError, match="'v2-edge'"):
        read((), -1, "v2-edge")


def test_published_results_are_read():
    for one in list_comparisons(()):
        content = read((), one.root, one.name)
        assert content.cells
        assert json.dumps(describe(content), allow_nan=False)


def test_without_the_papers_only_folders_are_listed(root, monkeypatch):
    monkeypatch.setattr("suffice_studio.comparisons.find_spec", lambda _: None)
    assert {one.root for one in list_comparisons((root,))} == {0}
    with pytest.raises(ConfigError, match=r"'v2-imdb' is in suffice-papers, .*install"):
        read((), -1, "v2-imdb")


def test_the_page_shows_what_the_report_says(root, results):
    page = describe(read((root,), 0, "done"))
    assert page["sentence"].startswith(("efficient", "toeplitz", "optimised", "undecided", "no "))
    assert page["outcome"] in ("suffices", "baseline", "undecided")
    assert len(page["points"]) == len(results.pairs())
    assert {table["title"] for table in page["tables"]} >= {"Quality, test", "Cost"}
    assert page["costs"] == ["flops", "latency", "parameters"]
    curves = page["curves"]["validation_accuracy"]
    cells = results.select(*results.pairs()[0])
    mean = sum(cell.epochs[0]["validation_accuracy"] for cell in cells) / len(cells)
    assert curves[0]["points"][0] == [1, pytest.approx(mean)]
    assert json.dumps(page, allow_nan=False)


def test_front_holds_the_undominated_points(results):
    page = describe(results, cost="latency")
    for one in page["points"]:
        beaten = any(
            other["cost"] <= one["cost"] and other["mean"] >= one["mean"]
            and (other["cost"], other["mean"]) != (one["cost"], one["mean"])
            for other in page["points"]
        )  # fmt: skip
        assert one["front"] == (not beaten)
    assert front([]) == []


def test_unfinished_comparison_shows_finished_cells(root):
    content = read((root,), 0, "deep/begun")
    assert [cell.key for cell in content.cells] == [
        ("standard", 4, 0), ("standard", 4, 1), ("efficient", 4, 0), ("efficient", 4, 1),
    ]  # fmt: skip
    assert content.command == "suffice reproduce x"
    (root / "deep" / "begun" / "ran.json").unlink()
    assert read((root,), 0, "deep/begun").command == "not finished yet"
    assert describe(content)["costs"] == ["flops", "parameters"]
    with pytest.raises(DataError, match="empty"):
        read((root,), 0, "empty")


def test_losses_that_are_not_finite_are_left_out(results):
    cell = results.cells[0]
    epochs = ({**cell.epochs[0], "validation_loss": math.nan}, *cell.epochs[1:])
    cells = (dataclasses.replace(cell, epochs=epochs), *results.cells[1:])
    page = describe(dataclasses.replace(results, cells=cells))
    points = page["curves"]["validation_loss"][0]["points"]
    assert points[0][0] == 2
    assert json.dumps(page, allow_nan=False)


def test_wrong_requests_are_refused(root, results):
    with pytest.raises(ConfigError, match="unknown cost 'money'"):
        describe(results, cost="money")
    with pytest.raises(ConfigError, match="margin='1%'"):
        describe(results, margin="1%")
    with pytest.raises(DataError, match="'v9'"):
        read((root,), -1, "v9")
    with pytest.raises(DataError, match="folder 3"):
        read((root,), 3, "done")
    with pytest.raises(DataError, match="cannot read"):
        read((root,), 0, ".")


def test_search_stops_at_its_limits(tmp_path, results):
    write_results(tmp_path / "a" / "b" / "c" / "d" / "e" / "results.json", results)
    assert [one for one in list_comparisons((tmp_path,)) if one.root == 0] == []
    assert [one.name for one in list_comparisons((tmp_path / "a",)) if one.root == 0] == ["b/c/d/e"]


def test_front_with_ties():
    assert front([(1.0, 0.5), (1.0, 0.6)]) == [False, True]
    assert front([(1.0, 0.5), (2.0, 0.9), (3.0, 0.8), (2.0, 0.9)]) == [True, True, False, True]
    assert front([(1.0, 0.5), (2.0, 0.5)]) == [True, False]


@pytest.mark.parametrize(("better", "best"), [("higher", "efficient"), ("lower", "standard")])
def test_a_metric_of_an_own_loop_is_ranked_in_its_direction(tmp_path, better, best):
    values = {"standard": 100.0, "efficient": 102.0}
    options = {"metric": "reward", "better": better, "margin": 3.0}
    shown = describe(own_loop.run(own_loop.losing(values), tmp_path, **options).results)
    means = {point["mechanism"]: point["mean"] for point in shown["points"]}
    assert means == pytest.approx(values, rel=0.01)
    (sheet,) = (sheet for sheet in shown["tables"] if sheet["title"] == "More metrics, test")
    first = [line["cells"][0] for line in sheet["lines"] if "(1)" in line["cells"][2]]
    assert first == [best]
