"""The harness of the benchmarks: what is wrong is told and not timed, what is absent is named."""

from __future__ import annotations

import pytest
import torch

from benchmarks import contest as harness
from benchmarks.contest import Absent, Effort, Rival, Side, contest, growth, timed

EFFORT = Effort(rounds=3, warmup=0, seconds=1e-7)


@pytest.fixture
def clock(monkeypatch):
    """Time every call as what the test says it takes."""
    seconds = {}

    def interleave(calls, *, rounds, warmup, min_seconds_per_sample):
        assert (rounds, warmup, min_seconds_per_sample) == (3, 0, 1e-7)
        assert [call() for call in calls.values()]
        return {name: seconds[name] for name in calls}

    monkeypatch.setattr(harness, "interleave", interleave)
    return seconds


def side(name="ours", complaint=None) -> Side:
    def check():
        if complaint is not None:
            raise complaint

    return Side(name=name, call=lambda: name, check=check)


def rival(name="peer", reach=2.0, made=None) -> Rival:
    return Rival(name=name, make=lambda: made or side(name), reach=reach)


def rows(ours, *rivals, effort=EFFORT):
    return list(contest("case", ours, rivals, effort))


def test_a_ratio_is_the_median_of_the_rounds(clock):
    clock.update(ours=(1.0, 2.0, 9.0), peer=(4.0, 4.0, 9.0))
    (row,) = rows(side("blocked"), rival())
    assert (row.case, row.op, row.peer) == ("case", "blocked", "peer")
    assert (row.ours, row.theirs, row.value) == ("2000.00 ms", "4000.00 ms", "2.00x")
    assert (row.reach, row.standing) == ("2x", "reached")
    assert not row.failed


def test_what_is_too_slow_is_missed(clock):
    clock.update(ours=(2.0, 2.0, 2.0), peer=(3.9, 3.9, 3.9))
    (row,) = rows(side(), rival())
    assert (row.value, row.standing) == ("1.95x", "MISSED")
    assert not row.failed


@pytest.mark.parametrize(("reach", "shrink", "shown"), [(2.0, 4, "2x"), (None, 1, "")])
def test_short_runs_and_peers_without_a_reach_judge_nothing(clock, reach, shrink, shown):
    clock.update(ours=(2.0, 2.0, 2.0), peer=(3.0, 3.0, 3.0))
    effort = Effort(rounds=3, warmup=0, seconds=1e-7, shrink=shrink)
    (row,) = rows(side(), rival(reach=reach), effort=effort)
    assert (row.value, row.reach, row.standing) == ("1.50x", shown, "")


@pytest.mark.parametrize("error", [AssertionError("off by 1\nmore"), RuntimeError("off by 1")])
def test_our_wrong_result_prints_no_speed_up(monkeypatch, error):
    monkeypatch.setattr(harness, "interleave", None)
    found = rows(side(complaint=error), rival("one"), rival("two"))
    assert [row.peer for row in found] == ["one", "two"]
    for row in found:
        assert row.standing == f"WRONG: {type(error).__name__}: off by 1"
        assert (row.ours, row.theirs, row.value) == ("", "", "")
        assert row.failed


def test_a_peers_wrong_result_prints_no_speed_up_over_it(clock):
    clock.update(ours=(1.0, 1.0, 1.0), good=(3.0, 3.0, 3.0))
    bad = rival("bad", made=side("bad", AssertionError("off")))
    first, second = rows(side(), bad, rival("good"))
    assert first.standing == "PEER WRONG: AssertionError: off"
    assert first.value == ""
    assert first.failed
    assert second.value == "3.00x"


def test_an_absent_peer_says_how_to_get_it(clock):
    def absent():
        raise Absent("performer-pytorch (No module); pip install --group bench")

    (row,) = rows(side(), Rival(name="performer", make=absent, reach=2.0))
    assert row.standing == "absent: performer-pytorch (No module); pip install --group bench"
    assert not row.failed


def test_growth_is_the_exponent_of_the_rounds(clock):
    clock.update({"10": (1.0, 1.0, 7.0), "20": (2.0, 4.0, 9.0), "40": (4.0, 16.0, 9.0)})
    sides = {length: side("scan") for length in (10, 20, 40)}
    (row,) = growth("case", sides, 1.08, EFFORT)
    assert (row.case, row.op, row.peer) == ("case, T=10..40", "scan", "itself at T=10")
    assert (row.value, row.reach, row.standing) == ("T^1.000", "T^1.08", "reached")
    (row,) = growth("case", sides, 0.9, EFFORT)
    assert row.standing == "MISSED"


def test_growth_of_a_wrong_result_is_not_reported(monkeypatch):
    monkeypatch.setattr(harness, "interleave", None)
    sides = {10: side(), 20: side(complaint=AssertionError("off"))}
    (row,) = growth("case", sides, 1.08, EFFORT)
    assert row.standing == "WRONG at T=20: AssertionError: off"
    assert row.failed


def test_timed_calls_compute_what_they_say():
    x = torch.arange(3.0)
    assert torch.equal(timed(torch.square, [x], backward=False)(), x.square())
    out = timed(torch.square, [x], backward=False)()
    assert out.is_inference()
    torch.manual_seed(0)
    call = timed(torch.square, [x], backward=True)
    torch.manual_seed(0)
    assert torch.equal(call()[0], 2 * x * torch.randn(3))


def test_timed_calls_reach_the_parameters_of_a_module():
    layer = torch.nn.Linear(3, 2)
    slopes = timed(layer, [torch.ones(1, 3)], backward=True, module=layer)()
    assert [slope.shape for slope in slopes] == [(1, 3), (2, 3), (2,)]
