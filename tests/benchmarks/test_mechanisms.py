"""The table of mechanisms: its cases, and the peers that are installed."""

from __future__ import annotations

import pytest
import torch

from benchmarks import cases, mechanisms
from benchmarks.contest import Effort
from benchmarks.report import Outcome

TINY = Effort(rounds=1, warmup=0, seconds=1e-7, shrink=32)


@pytest.fixture
def table(monkeypatch, capsys):
    """Run the command with these cases; return its status and what it printed."""

    def run(words, **made):
        monkeypatch.setattr(mechanisms, "CASES", made)
        monkeypatch.setattr(mechanisms, "keep_large_temporaries", lambda: "as it is")
        monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
        status = mechanisms.main(words)
        return status, capsys.readouterr().out

    return run


def case(standing, seen=None):
    def rows(effort):
        """What it compares."""
        if seen is not None:
            seen.append(effort)
        yield Outcome(case="window", op="blocked", peer="SDPA", value="2x", standing=standing)

    return rows


def test_a_wrong_result_fails_the_command(table):
    status, text = table([], one=case("reached"), two=case("WRONG: AssertionError: [1, 2] off"))
    assert status == 1
    assert "window, SDPA: WRONG: AssertionError: [1, 2] off" in text


def test_short_cases_are_right_and_say_what_they_measured():
    (first, second), (last,) = (list(cases.CASES[name](TINY)) for name in ("favor", "memory"))
    assert (first.peer, second.peer, last.peer) == (
        "performer-pytorch",
        "causal SDPA",
        "peak of torch",
    )
    assert first.standing == "" or first.standing.startswith("absent: performer-pytorch (")
    assert second.value.endswith("x")
    assert last.value.endswith(" MiB")
    assert not any(row.failed for row in (first, second, last))
