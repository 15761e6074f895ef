"""Two processes with one --out: one is refused, or both write the same; never a mixture."""

from __future__ import annotations

import os

import pytest

from tools.kills.cases import CASES
from tools.kills.killing import _restore, _run, _seen, begin, end

QUICK = {"compare", "train", "convert", "predict"}
"""Verbs with a folder of cells, of checkpoints, of a model, and with one file."""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="runs copies of itself")
@pytest.mark.parametrize(
    "verb",
    [verb if verb in QUICK else pytest.param(verb, marks=pytest.mark.slow) for verb in CASES],
)
def test_two_processes_leave_one_whole_result(verb, tmp_path):
    case, source, work = CASES[verb], tmp_path / "source", tmp_path / "work"
    source.mkdir()
    case.prepare(source)
    _restore(source, work)
    assert _run(case, case.words, work) == 0
    new = _seen(case, work)
    _restore(source, work)
    codes = [end(child) for child in [begin(case, case.words, work) for _ in range(2)]]
    assert sorted(codes) in ([0, 0], [0, 2]), codes
    seen = _seen(case, work)
    assert seen == new or case.between(seen, new)
    hidden = [path.name for path in work.rglob(".*") if path.name != ".lock"]
    assert not hidden
