"""Whether cells are trained side by side is measured once, and kept with the comparison."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suffice.comparison import compare as module
from suffice.comparison.compare import choose_execution
from suffice.comparison.jobs import Execution
from suffice.data import load
from tests.comparison.test_compare import TINY, plan


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def digits():
    return load("digits")


def chosen(folder, dataset, given=None, **options):
    given, lines = given or plan(), []
    cells = options.get("cells", len(given.cells))
    return choose_execution(given, dataset, folder, cells, lines.append), lines


@pytest.mark.parametrize(
    ("shared", "whole", "jobs"),
    [(1.9, 1.0, 2), (2.1, 1.0, 1), (0.9, 1.0, 2), (1e-3, 2e-3, 1)],
    ids=["two are faster", "threads help more", "threads harm", "too short to start processes"],
)
def test_the_faster_way_is_chosen_and_kept(tmp_path, monkeypatch, digits, shared, whole, jobs):
    monkeypatch.setattr(module, "_step_seconds", lambda *_: [shared, whole])
    long = plan(recipe=replace(TINY, training=replace(TINY.training, epochs=50)))
    expected = Execution(jobs=2, threads=1) if jobs == 2 else None
    execution, (line,) = chosen(tmp_path, digits, long)
    assert execution == expected
    each = "on 1 thread each" if jobs == 2 else "on 2 threads each"
    assert line.startswith(f"trainings in parallel: {jobs}, {each}; a step takes ")
    assert f"{1e3 * shared:.1f} ms on 1 thread, {1e3 * whole:.1f} ms on 2 threads" in line
    monkeypatch.setattr(module, "_step_seconds", lambda *_: [whole, shared])
    assert chosen(tmp_path, digits, long, cells=1) == (expected, [])  # resumed: as it began


def test_nothing_is_measured_where_there_is_no_choice(tmp_path, monkeypatch, digits):
    monkeypatch.setattr(module, "_step_seconds", None)
    assert chosen(tmp_path, digits, cells=3) == (None, [])  # one was trained before
    assert chosen(tmp_path, digits, replace(plan(), seeds=1, mechanisms=("standard",)))[0] is None
    torch.set_num_threads(1)
    assert chosen(tmp_path, digits) == (None, [])


def test_a_measurement_is_short_and_leaves_no_trace(digits):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    seconds = module._step_seconds(plan(), digits, 1, 2)
    assert min(seconds) > 0
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.rand(1), expected)
