"""Cases are judged by the instructions they ran on, and an interrupted run goes on."""

from __future__ import annotations

import json
from math import inf
from time import perf_counter

import pytest

from benchmarks import edge
from benchmarks.peers.decoders import run_of
from benchmarks.report import Outcome
from suffice.errors import ConfigError
from tests.ops.native.codings import needs_kernels

pytestmark = needs_kernels


def asked(**given):
    options = {
        "rounds": 1, "seconds": inf, "shrink": 1, "shape": None, "bits": None, "peer": None,
        "clock": perf_counter, "parts": False, "done": {}, "file": None,
    }  # fmt: skip
    return edge.Asked(**options | given)


def test_a_case_of_the_file_is_not_run_again(tmp_path):
    file, ran = tmp_path / "rows.json", []

    def rows():
        ran.append(1)
        yield Outcome(case="a", op="suffice", peer="b", value="1.25x")

    for _ in range(2):
        once = asked(done=edge.recorded(file), file=file)
        assert [row.value for row in once.remembered("case", rows())] == ["1.25x"]
    assert ran == [1]
    read = json.loads(file.read_text())
    assert read["instructions"] == edge.description()["instructions"]
    assert "cpu" in read["machine"]


def test_rows_of_other_instructions_are_not_mixed(tmp_path):
    file = tmp_path / "rows.json"
    file.write_text(json.dumps({"instructions": "another", "cases": {}}))
    with pytest.raises(ConfigError, match="another"):
        edge.recorded(file)


def run(seconds):
    return run_of([1, 2, 3], 4, [0.0, 1.0, 1.0 + seconds, 1.0 + 2 * seconds])


@pytest.mark.parametrize(
    ("instructions", "standing"), [("avx2", "reached"), (edge.WIDEST, "MISSED")]
)
def test_the_widest_instructions_have_higher_reaches(monkeypatch, instructions, standing):
    monkeypatch.setattr(edge.library, "instructions", lambda: instructions)
    speed = edge.Bandwidth(1 << 20, perf_counter)
    speed.rates = [10.0]
    rows = {"b": Outcome(case="decode 15m, 32 bits", op="suffice", peer="b")}
    runs = {"suffice": [run(0.125)], "b": [run(0.140)]}
    peer, bound = edge.judged(asked(), "decode", rows, {"b": object()}, runs, speed, 1)
    assert (peer.value, peer.standing) == ("1.12x", standing)
    assert (bound.value, bound.peer, bound.standing) == ("0.80", "reading alone", standing)


def test_weights_of_a_shape_are_drawn_once_and_packed_copies_leave_them_alone():
    whole = edge.model("15m")
    before = whole.blocks[0].mlp.up.weight.clone()
    assert edge.packed("15m", 32) is whole
    edge.packed("15m", 4)
    assert (whole.blocks[0].mlp.up.weight == before).all()
