from __future__ import annotations

import io
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from suffice.data import load
from suffice.errors import ConfigError
from suffice.measure.probe import (
    Finding,
    Report,
    probe_mechanisms,
    recall_figure,
    suite,
    write_figure,
)
from suffice.measure.probe import mechanisms as module
from suffice.measure.probe.mechanisms import solved_at
from suffice.measure.probe.report import ALARM, FAILED
from suffice.measure.probe.tasks import views
from suffice.measure.results import cell_path, read_cell
from suffice.measure.statistics import summarise

from .small import small, tasks

PROBED = [task for name, task in tasks().items() if name not in ("mqar-8-d64", "two_hop")]


def finding(**changes):
    given = {
        "task": "t",
        "mechanism": "standard",
        "view": "",
        "accuracy": summarise([0.5, 0.5]),
        "chance": 0.25,
        "solved": (None, None),
        "steps": 640,
        "state": 64.0,
    }
    return Finding(**{**given, **changes})


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probe")
    console = Console(file=io.StringIO(), width=100)
    report = probe_mechanisms(
        ("standard", "linear"), folder, seeds=2, console=console, tasks=PROBED
    )
    return folder, report


def test_every_mechanism_is_probed_on_every_task(found):
    _, report = found
    names = [one.mechanism for one in report.findings if one.task == "induction"]
    assert names == ["standard", "linear"]
    assert all(one.accuracy.n == 2 and len(one.solved) == 2 for one in report.findings)
    views = {(one.mechanism, one.view) for one in report.findings if one.task == "passkey"}
    kept = {mechanism for mechanism, view in views if view.endswith("8 kept")}
    assert len(views) == 12
    assert kept == {"standard"}, "sums forget nothing when a memory rolls"


def test_controls_stand_beside_and_fail(found):
    _, report = found
    reasons = {(one.task, one.mechanism): one.control for one in report.controls}
    assert reasons == {
        ("copy", "sliding_window"): reasons["copy", "sliding_window"],
        ("passkey", "standard"): reasons["passkey", "standard"],
        ("two_hop-1-layer", "standard"): "one layer cannot look up what it has found",
        ("mqar-4-d64-shuffled", "standard"): "the answers stand behind the wrong keys",
    }
    assert reasons["copy", "sliding_window"].startswith("6 tokens back can be attended to, and")
    assert all(one.verdict == FAILED for one in report.controls)
    assert report.alarms == ()


def test_a_window_that_was_requested_is_trained_once():
    task = tasks()["copy"]
    assert task.mechanisms(("standard",)) == ("standard", "sliding_window")
    assert task.mechanisms(("sliding_window",)) == ("sliding_window",)


def test_what_is_finished_is_not_trained_again(found, monkeypatch):
    folder, report = found

    def refuse(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr("suffice.measure.compare.train_cell", refuse)
    again = probe_mechanisms(("standard", "linear"), folder, seeds=2, tasks=PROBED)
    assert again.findings == report.findings
    with pytest.raises(AssertionError, match="trained again"):
        probe_mechanisms(("standard",), folder, seeds=3, tasks=PROBED)
    other = [small(task, epochs=2) for task in suite(quick=True)]
    with pytest.raises(ConfigError, match="holds a comparison of another recipe: training.epochs"):
        probe_mechanisms(("standard",), folder, seeds=2, tasks=other)


def test_accuracy_is_that_of_the_cell(found):
    folder, report = found
    (one,) = (
        one for one in report.findings if (one.task, one.mechanism) == ("induction", "linear")
    )
    cells = [read_cell(folder / "induction", "linear", 2, seed) for seed in range(2)]
    assert one.accuracy == summarise([cell.test_accuracy for cell in cells])
    assert cell_path(folder / "induction", "linear", 2, 0).exists()
    assert one.steps == 1
    assert one.chance == load("induction", rows=64).chance


def test_a_rolling_memory_that_keeps_everything_changes_nothing(tmp_path, monkeypatch):
    def wider(dataset):
        plain = views(dataset)[:4]
        return (*plain, *(replace(view, cache_tokens=36) for view in plain))

    monkeypatch.setattr(module, "views", wider)
    report = probe_mechanisms(("standard",), tmp_path, seeds=1, tasks=[tasks()["passkey"]])
    plain, kept = report.findings[:4], report.findings[4:]
    for one, other in zip(plain, kept, strict=True):
        assert one.accuracy.mean == pytest.approx(other.accuracy.mean)


def test_solved_is_the_first_epoch_that_is_good_enough(found):
    folder, _ = found
    cell = read_cell(folder / "induction", "linear", 2, 0)
    scores = (0.5, 0.99, 0.98)
    epochs = tuple(
        {**cell.epochs[0], "epoch": n, "validation_accuracy": score}
        for n, score in enumerate(scores, start=1)
    )
    assert solved_at(replace(cell, epochs=epochs), 64) == 128
    assert solved_at(cell, 64) is None


def test_a_control_that_succeeds_is_an_alarm(tmp_path):
    task = replace(tasks()["induction"], must_fail="it is said to be impossible")
    easy = finding(control="no", accuracy=summarise([0.4]))
    assert easy.verdict == ALARM
    assert finding(control="no", accuracy=summarise([0.29])).verdict == FAILED
    report = Report(kind="mechanisms", facts={}, findings=(easy, finding()))
    assert report.alarms == report.controls == (easy,)
    assert report.to_json()["alarms"] == 1
    made = probe_mechanisms(("standard",), tmp_path, seeds=1, tasks=[task])
    assert [one.control for one in made.findings] == ["it is said to be impossible"]


def test_the_figure_shows_every_recall(found, tmp_path):
    _, report = found
    figure = recall_figure(report)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["4 pairs"]
    for axes in figure.axes:
        drawn = [list(container.lines[0].get_ydata()) for container in axes.containers]
        assert len(drawn) == 2
        for mechanism, points in zip(("standard", "linear"), drawn, strict=True):
            means = {
                100 * f.accuracy.mean
                for f in report.findings
                if f.pairs == 4 and f.mechanism == mechanism
            }
            assert set(points) == means
        assert axes.get_xscale() == "log"
        assert axes.xaxis.get_major_formatter()(4096.0, 0) == "4,096"
    assert write_figure(report, tmp_path).read_bytes()[:4] == b"\x89PNG"
    other = replace(report, findings=(finding(),))
    assert write_figure(other, tmp_path / "none") is None


def test_unsupported_mechanisms_are_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(ConfigError, match="linformer .* LowRank sums keys"):
        probe_mechanisms(("standard", "linformer"), tmp_path)
    with pytest.raises(ConfigError, match="mechanisms: none; name at least one"):
        probe_mechanisms((), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_whole_suite_sweeps_recall_over_pairs_and_widths():
    long, quick = suite(), suite(quick=True)
    pairs = {(task.pairs, task.recipe.model.d_model) for task in long if task.pairs}
    assert pairs == {(n, d) for n in (4, 8, 16, 32) for d in (32, 64)}
    assert len({task.name for task in long}) == len(long)
    assert {task.name for task in quick} - {task.name for task in long} == {"mqar-4-d64-shuffled"}
    for task in (*long, *quick):
        dataset = load(task.recipe.task, **{**dict(task.recipe.task_options), "rows": 8})
        assert dataset.num_classes == task.recipe.model.vocabulary_size
        assert dataset.train.inputs.shape[1] == task.recipe.model.length
        for view in views(dataset):
            assert view.split.inputs.shape[1] == task.recipe.model.length
        torch.manual_seed(0)
        assert task.recipe.build("standard", task.recipe.num_heads) is not None
