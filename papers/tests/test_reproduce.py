"""`suffice reproduce`: tables of the papers from finished cells, and the cells that are missing."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from rich.console import Console

from papers.tests.test_edge import EDGE, FOUR
from papers.tests.tiny import RESULTS, TINY, cells, fill, kept
from suffice.cli.terminal import Stopped
from suffice.comparison.results import write_cell
from suffice.errors import ConfigError
from suffice_papers import request as request_module
from suffice_papers import results as published_module
from suffice_papers import tables
from suffice_papers.cli import reproduce
from suffice_papers.edge import Edge
from tests.comparison.conftest import quick
from tests.comparison.synthetic import make_cell

reproduced = import_module("suffice_papers.cli")
SUMMARY = replace(TINY, name="all", shows="parts", parts=("tiny",), columns=(), figures=())
DRAWN = replace(SUMMARY, name="drawn", figures=("heads",))
TIMES = replace(EDGE, name="times", cells_of="times")
PLAIN = ("--no-report", "--quiet")


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Let the registry be a few small tables and the published results an empty folder."""
    made = {found.name: found for found in (TINY, SUMMARY, DRAWN, TIMES)}
    monkeypatch.setattr(tables, "TABLES", made)
    (tmp_path / "pyproject.toml").touch()

    monkeypatch.setattr("suffice_papers.published.FOLDER", tmp_path / RESULTS)
    monkeypatch.setattr(request_module, "recipe", quick)


@pytest.fixture
def ran(monkeypatch):
    """Let cells be drawn instead of trained; what was asked for is remembered."""
    asked = []

    def run_cells(plan, keys, folder, means, *, console, command):
        asked.append((keys, means))
        found = {cell.key: cell for cell in cells(seeds=3)}
        fill(folder, [found[key] for key in keys])
        return keys

    monkeypatch.setattr("suffice_papers.folder.run_cells", run_cells)
    return asked


def publish(found=None):
    recipe = json.loads(json.dumps(kept([]).recipe))
    recipe["training"]["epochs"] = 1
    published_module.publish(TINY, kept(cells() if found is None else found, recipe=recipe))


def test_without_a_table_they_are_listed(suffice):
    publish()
    result = suffice("reproduce")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = {line.split()[0]: line for line in result.stdout.splitlines()[2:] if line.split()}
    assert "12 of 12 cells, scale paper" in lines["tiny"]
    assert "from tiny" in lines["all"]
    assert "0 of 4 groups" in lines["times"]
    assert "computed" in lines["flops"]


def test_published_results_are_printed_without_training(suffice, ran, tmp_path):
    publish()
    result = suffice("reproduce", "tiny", "--no-report")
    assert (result.exit_code, result.stderr, ran) == (0, "", [])
    assert "97.10 ± 1.27 (1)" in result.stdout
    assert "98.12" in result.stdout
    assert "not run" not in result.stdout
    assert not (tmp_path / "runs").exists()


def test_the_report_is_drawn_beside_the_table(suffice, tmp_path):
    publish()
    result = suffice("reproduce", "tiny")
    assert result.stdout.endswith("report: runs/reproduce/tiny/report\n")
    assert (tmp_path / "runs" / "reproduce" / "tiny" / "report" / "heads.svg").exists()


def test_what_is_missing_is_blank_until_it_is_requested(suffice, ran):
    publish(cells(heads=(1,)))
    result = suffice("reproduce", "tiny", *PLAIN)
    assert "6 of 12 cells were not run" in result.stdout
    assert result.stdout.endswith("Blank values were not run: suffice reproduce tiny --run\n")
    assert ran == []
    result = suffice("reproduce", "tiny", "--run", "--jobs", 2, "--max-minutes", 5, *PLAIN)
    assert result.exit_code == 0
    (keys, means), *more = ran
    assert more == []
    assert len(keys) == 6
    assert {key[1] for key in keys} == {4}
    assert (means.jobs, means.threads, means.minutes, means.quiet) == (2, 1, 5.0, True)
    assert "not run" not in result.stdout
    suffice("reproduce", "tiny", "--run", *PLAIN)
    assert len(ran) == 1


def test_more_seeds_or_heads_train_what_they_lack(suffice, ran):
    publish()
    suffice("reproduce", "tiny", "--seeds", 3, *PLAIN)
    assert {key[2] for key in ran[0][0]} == {2}
    suffice("reproduce", "tiny", "--heads", "1", *PLAIN)
    assert len(ran) == 1


def test_json_and_csv(suffice):
    publish()
    content = json.loads(suffice("reproduce", "tiny", "--json", *PLAIN).stdout)
    assert content[0]["rows"][0]["figures"]["test_accuracy"]["n"] == 2
    told = suffice("reproduce", "tiny", "--csv", *PLAIN)
    assert told.stdout.startswith("table,scale,mechanism,heads,figure,n,mean")
    told = suffice("reproduce", "tiny", "--json", "--csv")
    assert "--json and --csv are two forms of one result; give one of them" in told.message
    assert told.exit_code == 2


def test_what_is_finished_is_published(suffice, ran, tmp_path):
    result = suffice("reproduce", "tiny", "--run", "--publish", "--no-report")
    assert result.exit_code == 0
    assert "published: " in result.stderr
    content = json.loads((tmp_path / RESULTS / "tiny.json").read_text())
    assert len(content["results"]["cells"]) == 12


def test_a_cell_is_run_again(suffice, monkeypatch):
    publish()

    def written(plan, keys, folder, *_, **__):
        write_cell(folder, make_cell(*keys[0]))

    monkeypatch.setattr("suffice_papers.request.run_cells", written)
    result = suffice("reproduce", "tiny", "--rerun", "efficient:4:1")
    assert result.exit_code == 0
    assert "tiny: efficient heads 4 seed 1, trained twice" in " ".join(result.stdout.split())
    long = "efficient:4:4294967296"  # a seed of 33 bits is another one's
    for word in ("efficient", "efficient:4", ":4:1", "efficient:four:1", long):
        result = suffice("reproduce", "tiny", "--rerun", word)
        assert f"--rerun '{word}' is not a cell; give MECHANISM:HEADS:SEED" in result.message


def test_a_summary_shows_its_parts_at_their_highest_heads(suffice, ran):
    publish(cells(heads=(4,)))
    result = suffice("reproduce", "all", *PLAIN)
    assert (result.exit_code, ran) == (0, [])
    content = json.loads(suffice("reproduce", "all", "--json", *PLAIN).stdout)
    assert {row["heads"] for row in content[0]["rows"]} == {4}
    content = json.loads(suffice("reproduce", "drawn", "--json", *PLAIN).stdout)
    assert {row["heads"] for row in content[0]["rows"]} == {1, 4}
    result = suffice("reproduce", "all", "--publish")
    assert "all is made of tiny; leave --publish out" in result.message


def test_times_are_shown_taken_and_published(suffice, monkeypatch, tmp_path):
    taken = []
    monkeypatch.setattr("suffice_papers.edge.run_edge", lambda *given, console: taken.append(given))
    monkeypatch.setattr("suffice_papers.edge.finished", lambda *given: Edge(groups=(FOUR,)))
    result = suffice("reproduce", "times", "--no-report")
    assert (result.exit_code, taken) == (0, [])
    assert "0.75 (1)" in result.stdout
    assert result.stdout.endswith("Missing values were not timed: suffice reproduce times --run\n")
    result = suffice("reproduce", "times", "--run", "--publish", "--json", "--quiet")
    assert len(taken) == 1
    assert json.loads(result.stdout)[0]["task"] == "imdb"
    assert (tmp_path / RESULTS / "times.json").exists()
    assert (tmp_path / "runs" / "reproduce" / "times" / "report" / "latency.png").exists()
    assert suffice("reproduce", "times", "--csv", "--no-report").stdout.startswith("task,heads")
    result = suffice("reproduce", "times", "--seeds", 3)
    assert "times times models that were not trained" in result.message


def test_flops_and_evidence_have_writers(suffice, monkeypatch):
    monkeypatch.setattr(
        "suffice_papers.flops.flops", lambda folder, console: console.print(f"into {folder}")
    )
    result = suffice("reproduce", "flops")
    assert result.stdout == "into runs/reproduce/flops\nfigures: runs/reproduce/flops\n"
    monkeypatch.setattr("suffice_papers.evidence.page", lambda: "the page\n")
    assert suffice("reproduce", "evidence").stdout == "the page\n"
    monkeypatch.setattr("suffice_papers.evidence.write_page", lambda: "evidence.md")
    assert suffice("reproduce", "evidence", "--publish").stderr == "written: evidence.md\n"


def test_what_is_not_there_is_refused(suffice):
    result = suffice("reproduce", "tini")
    assert result.exit_code == 2
    assert "unknown table 'tini'; did you mean 'tiny'?" in result.message
    assert "flops" in result.message
    assert "--seeds 0: give at least 1" in suffice("reproduce", "tiny", "--seeds", 0).message


def test_ctrl_c_says_that_finished_cells_are_kept(suffice, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("suffice_papers.folder.run_cells", interrupt)
    result = suffice("reproduce", "tiny", "--run")
    assert result.exit_code == 130
    assert "interrupted. Finished cells are kept; the same command resumes" in result.message


# the same, met as errors


def asked(table="tiny", **changes):
    return reproduced.ReproduceOptions(table=table, quiet=True, no_report=True, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"as_json": True, "as_csv": True}, "--json and --csv are two forms of one result"),
        ({"seeds": 0}, "--seeds 0: give at least 1"),
        ({"table": "tini"}, "unknown table 'tini'; did you mean 'tiny'"),
        ({"rerun": "efficient"}, "--rerun 'efficient' is not a cell; give MECHANISM:HEADS:SEED"),
        ({"table": "all", "publish": True}, "all is made of tiny; leave --publish out"),
        ({"table": "tiny", "publish": True, "data": "x"}, "--publish writes results"),
        ({"table": "flops", "data": "x"}, "flops reads no data; leave --data out"),
        ({"table": "times", "data": "x"}, "times times models that were not trained"),
        ({"table": "tiny", "data": __file__}, "task digits reads its own data; leave it out, or"),
        ({"table": "all", "data": __file__}, "task digits reads its own data; leave it out, or"),
        ({"table": "times", "scale": "small"}, "times times models that were not trained"),
        ({"table": "conversion", "seeds": 3}, "conversion has fixed settings .* leave --seeds out"),
        (
            {"table": "tiny", "heal_minutes": 1.0},
            "--heal-minutes is for the table conversion",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        reproduced.answer(asked(**changes), Console(file=io.StringIO()))


def test_ctrl_c_ends_the_command(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduced, "answer", interrupt)
    with pytest.raises(Stopped, match="interrupted. Finished cells are kept; the same command"):
        reproduce(table="tiny")


OWN = replace(TINY, name="own", recipe="amazon", paper="amazon", heads=(4,))


def test_files_of_the_user_have_results_of_their_own(suffice, monkeypatch, tmp_path):
    monkeypatch.setitem(tables.TABLES, "own", OWN)
    asked = []

    def run_cells(plan, keys, folder, means, *, console, command):
        asked.append((dict(plan.recipe.task_options)["path"], folder, len(keys)))

    monkeypatch.setattr("suffice_papers.folder.run_cells", run_cells)
    path = tmp_path / "my reviews.jsonl"
    path.write_text("{}\n")
    result = suffice("reproduce", "own", "--data", "my reviews.jsonl", "--quiet")
    assert "data of the user: my reviews.jsonl" in " ".join(result.stdout.split())
    assert "were not run: suffice reproduce own --data 'my reviews.jsonl' --run" in result.stdout
    suffice("reproduce", "own", "--data", "my reviews.jsonl", "--run", *PLAIN)
    ((where, folder, number),) = asked
    assert (where, number) == (str(path), 6)
    assert folder.name.startswith("own-my reviews.jsonl-")
    assert (folder / "report" / "table.json").exists()
    result = suffice("reproduce", "own", "--data", "nowhere.jsonl")
    assert result.exit_code == 2
    assert "--data nowhere.jsonl: no such file" in result.message


def test_the_table_of_conversions_is_made_and_shown(suffice, monkeypatch):
    from papers.tests.test_conversion import FOUND, WHOLE
    from suffice_papers import conversion as module

    asked = []
    monkeypatch.setattr(module, "run", lambda *given, **named: asked.append((given, named)))
    monkeypatch.setattr(module, "publish", lambda found: Path("conversion.json"))
    monkeypatch.setattr(module, "finished", lambda folder, keys: replace(FOUND, rows=()))
    result = suffice("reproduce", "conversion")
    assert result.exit_code == 0
    assert "Missing values were not run: suffice reproduce conversion --run" in result.stdout
    monkeypatch.setattr(module, "finished", lambda folder, keys: FOUND)
    monkeypatch.setattr(module, "wanted", lambda: [row.key for row in FOUND.rows])
    words = ("--run", "--heal-minutes", "0.5", "--max-minutes", "9", "--quiet", "--publish")
    result = suffice("reproduce", "conversion", *words)
    assert "published: conversion.json" in result.message
    assert "+0.5000 ± 0.1000" in result.stdout
    assert "Missing values" not in result.stdout
    ((given, named),) = asked
    assert given == (Path("runs/reproduce/conversion"), [row.key for row in FOUND.rows])
    assert (named["minutes"], named["limit"], named["quiet"]) == (0.5, 9.0, True)
    result = suffice("reproduce", "conversion", "--json")
    assert json.loads(result.stdout)["rows"][0]["steps"] == WHOLE.steps
    result = suffice("reproduce", "conversion", "--csv")
    assert result.stdout.startswith("subject,target,steps,minutes,of,change,low,high")
