from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from papers.tests.tiny import RESULTS
from suffice.errors import DataError
from suffice.train.recipes import recipe
from suffice_papers import edge as module
from suffice_papers.edge import (
    Edge,
    Timed,
    TimedGroup,
    edge_sheet,
    finished,
    latency_bars,
    paper_seconds,
    publish_edge,
    published_edge,
    random_inputs,
    records,
    run_edge,
    time_group,
    to_csv,
    wanted,
)
from suffice_papers.tables import MECHANISMS, table

EDGE = replace(table("v2-edge"), parts=("imdb", "mnist_v2"), heads=(1, 4), cells_of="tiny-edge")


def timed(mechanism, seconds, *, heads=4, task="imdb", joules=None, batch=100):
    return Timed(
        task=task,
        recipe=task,
        mechanism=mechanism,
        num_heads=heads,
        batch=batch,
        seconds=tuple(seconds),
        joules=joules,
    )


def group(*found):
    machine = {"cpu": "Some CPU", "cores": 2, "threads": 2, "gpu": None}
    return TimedGroup(timed=found, machine=machine, versions={}, commit=None, minutes=0.5)


FOUR = group(
    timed("standard", (0.02, 0.04, 0.03)),
    timed("optimised", (0.02, 0.02, 0.03)),
    timed("efficient", (0.01, 0.02, 0.015)),
    timed("super_attention", (0.03, 0.06, 0.045)),
)


@pytest.fixture
def results(monkeypatch, tmp_path):
    (tmp_path / "pyproject.toml").touch()

    monkeypatch.setattr("suffice_papers.published.FOLDER", tmp_path / RESULTS)
    return tmp_path


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(module, "_amount", lambda made, model: (2, 3))


# timing


def test_heads_that_do_not_divide_the_width_are_left_out():
    assert wanted(EDGE) == [("imdb", 1), ("imdb", 4), ("mnist_v2", 1), ("mnist_v2", 4)]
    assert wanted(EDGE, (3, 8)) == [("imdb", 8), ("mnist_v2", 8)]


def test_inputs_have_the_recipes_form():
    assert random_inputs(recipe("imdb"), 3).shape == (3, 32)
    assert random_inputs(recipe("imdb"), 3).max() < 20_000
    assert random_inputs(recipe("mnist_v2"), 2).shape == (2, 1, 32, 32)


class Ticking:
    """A meter that always counts the same energy."""

    def __init__(self, joules):
        self.used = joules

    def joules(self):
        return self.used


def test_mechanisms_are_timed_in_turn(quick, monkeypatch):
    monkeypatch.setattr(module, "EnergyMeter", lambda: Ticking(None))
    found = time_group("imdb", 4, MECHANISMS)
    assert [(t.mechanism, t.num_heads, t.samples) for t in found.timed] == [
        (name, 4, 6) for name in MECHANISMS
    ]
    assert all(min(t.seconds) > 0 and t.joules is None for t in found.timed)
    assert found.machine["threads"] == torch.get_num_threads()


def test_energy_is_added_up_where_it_can_be_read(quick, monkeypatch):
    monkeypatch.setattr(module, "EnergyMeter", lambda: Ticking(2.0))
    found = time_group("imdb", 1, ("standard", "efficient"))
    assert [t.joules for t in found.timed] == [6.0, 6.0]


@pytest.mark.parametrize(
    ("version", "task", "mechanism", "heads", "seconds"),
    [
        ("v1", "cifar100", "standard", 6, 55.47),
        ("v2", "imagenet", "super_attention", 8, 309.72),
        ("v2", "amazon", "efficient", 1, 0.93),
        ("v1", "imdb", "efficient", 4, None),
        ("v1", "imagenet", "standard", 1, None),
    ],
)
def test_seconds_of_the_edge_device(version, task, mechanism, heads, seconds):
    assert paper_seconds(version, task, mechanism, heads) == seconds


@pytest.mark.parametrize(
    ("seconds", "amount"),
    [(0.05, (100, 50)), (0.0001, (100, 500)), (0.5, (10, 40)), (9.0, (10, 10)), (0.101, (10, 198))],
)
def test_slow_models_are_timed_on_fewer_samples(monkeypatch, seconds, amount):
    monkeypatch.setattr(module, "_seconds", lambda model, inputs: seconds)
    assert module._amount(recipe("imdb"), None) == amount


def test_a_call_warms_up_before_it_is_timed():
    calls = []
    assert module._seconds(calls.append, torch.zeros(1)) >= 0
    assert len(calls) == 2


def test_finished_groups_are_not_timed_again(results, quick, monkeypatch, tmp_path):
    asked = []

    def time_group(name, heads, mechanisms):
        asked.append((name, heads))
        return group(*[replace(t, recipe=name, num_heads=heads) for t in FOUR.timed])

    monkeypatch.setattr(module, "time_group", time_group)
    folder, keys, stream = tmp_path / "run", wanted(EDGE), io.StringIO()
    run_edge(EDGE, folder, keys[:1], console=None)
    run_edge(EDGE, folder, keys[:2], console=Console(file=stream))
    assert asked == keys[:2]
    assert stream.getvalue() == "timing imdb, 4 heads\n"
    edge = finished(EDGE, folder, keys)
    assert [g.timed[0].num_heads for g in edge.groups] == [1, 4]
    publish_edge(EDGE, edge)
    assert published_edge(EDGE) == edge == finished(EDGE, tmp_path / "nowhere", keys)


def test_an_altered_file_of_times_is_reported(results, tmp_path):
    folder = tmp_path / "run" / "groups"
    folder.mkdir(parents=True)
    (folder / "imdb-h1.json").write_text("{")
    with pytest.raises(DataError, match="imdb-h1.json .* Delete it"):
        finished(EDGE, tmp_path / "run", wanted(EDGE))


# the table


def test_seconds_and_ratios_stand_at_equal_heads_beside_the_papers():
    found = records(EDGE, Edge(groups=(FOUR,)))
    efficient = found[2]
    assert efficient["seconds"] == pytest.approx(50 * 0.015)
    assert efficient["ratio"] == 0.5
    assert [record["rank"] for record in found] == [None, None, 1, 4]  # quartiles
    assert (efficient["paper"], efficient["paper_ratio"]) == (0.17, 0.17 / 0.183)


def test_the_table_says_how_it_was_measured():
    other = replace(FOUR.timed[0], task="image_folder", batch=10)
    few = group(other, *FOUR.timed[1:])
    sheet = edge_sheet(EDGE, Edge(groups=(FOUR, few)), [("mnist_v2", 8)])
    assert sheet.lines[0].cells == (
        "imdb",
        "4",
        "standard",
        "1.5",
        "1.000",
        "",
        "0.183",
        "1.000",
    )
    assert sheet.lines[4].starts_group
    assert not sheet.lines[0].starts_group
    for told in (
        "Fewer samples were timed and scaled up: imdb 300, imagenet 30.",
        "Ours on Some CPU (2 cores, 2 threads each).",
        "Joules are blank: this system",
        "Not timed: mnist_v2 with 8 heads.",
    ):
        assert told in sheet.caption


def test_energy_and_whole_runs_need_no_excuse():
    whole = group(*[replace(t, seconds=t.seconds[:1] * 50, joules=3.0) for t in FOUR.timed])
    sheet = edge_sheet(EDGE, Edge(groups=(whole,)), [])
    assert sheet.lines[0].cells[5] == "3"
    for absent in ("Fewer samples", "Joules", "Not timed"):
        assert absent not in sheet.caption


def test_csv_has_a_line_for_each_time():
    lines = list(csv.DictReader(io.StringIO(to_csv(EDGE, Edge(groups=(FOUR,))))))
    assert [line["mechanism"] for line in lines] == list(MECHANISMS)
    assert lines[1]["joules"] == ""
    assert json.loads(lines[2]["ratio"]) == 0.5


def test_bars_show_ratios():
    one = group(*[replace(t, num_heads=1) for t in FOUR.timed])
    figure = latency_bars(EDGE, Edge(groups=(FOUR, one)))
    (told,) = figure.legends
    assert [text.get_text() for text in told.get_texts()] == [t.mechanism for t in FOUR.timed]
    assert all(axes.get_legend() is None for axes in figure.axes)  # it would lie on the bars
    panel = figure.axes[1]
    assert panel.get_title(loc="left") == "4 heads"
    assert [bar.get_height() for bars in panel.containers for bar in bars] == [1, 1.0, 0.5, 1.5]
    assert [text.get_text() for text in panel.get_xticklabels()] == ["imdb"]
