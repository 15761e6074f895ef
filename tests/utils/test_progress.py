from __future__ import annotations

import io

import pytest
from rich.console import Console

from suffice.utils import progress
from suffice.utils.progress import Silent, show, workers


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def console(terminal, width=120):
    return Console(
        file=io.StringIO(), force_terminal=terminal, width=width, color_system=None, _environ={}
    )


def test_a_log_gets_one_plain_line_per_ten_seconds():
    clock, out = Clock(), console(terminal=False)
    with show(out, cells=4, clock=clock) as shown:
        assert shown.rich is None
        shown.cell("super [attention] heads 4")
        shown.say("epoch 1/2")
        for second in range(1, 26):
            clock.now = 100.0 + second
            shown.step(second, 25)
    assert out.file.getvalue().splitlines() == [
        "cell 1/4 super [attention] heads 4, epoch 1/2, 10%, 1:30 left",
        "cell 1/4 super [attention] heads 4, epoch 1/2, 20%, 1:20 left",
    ]


def test_a_terminal_gets_a_bar_with_the_cell_the_text_and_the_time_left():
    clock, out = Clock(), console(terminal=True)
    with show(out, cells=2, clock=clock) as shown:
        assert shown.rich is not None
        shown.cell("standard [h1]")
        shown.say("epoch 1/3 loss 0.5")
        clock.now += 0.2
        shown.step(1, 10)
        assert "loss" not in out.file.getvalue(), "not drawn before the interval"
        clock.now += 3599.8
        shown.step(5, 10)
        shown.cell("efficient")
        assert shown.finished == 1.0
    text = out.file.getvalue()
    assert "cell 1/2 standard [h1]" in text
    assert " 25%" in text
    assert "3:00:00 left" in text
    assert "epoch 1/3 loss 0.5" in text
    assert "cell 2/2 efficient" in text


def test_cells_done_before_count_as_done_but_not_as_pace():
    clock, out = Clock(), console(terminal=False)
    with show(out, cells=10, done=8, clock=clock) as shown:
        assert shown.finished == 8.0
        assert shown.left == ""
        shown.cell("ninth")
        clock.now += 10.0
        shown.step(1, 2)
    assert out.file.getvalue() == "cell 9/10 ninth, 85%, 0:30 left\n"


def test_the_first_steps_are_no_basis_for_the_time_left():
    clock, out = Clock(), console(terminal=False)
    with show(out, clock=clock) as shown:
        clock.now += 10.0
        shown.step(1, 1000)
        clock.now += 50.0
        shown.step(6, 1000)
    assert out.file.getvalue() == "training, 0%\ntraining, 1%, 2:45:40 left\n"


@pytest.mark.parametrize("why", ["quiet", "another process"])
def test_nothing_is_shown_when_quiet_or_not_the_first_process(why, monkeypatch):
    if why == "another process":
        monkeypatch.setattr(progress, "is_first_process", lambda: False)
    out = console(terminal=True)
    with show(out, quiet=why == "quiet") as shown:
        assert isinstance(shown, Silent)
        shown.cell("x")
        shown.say("y")
        shown.step(1, 1)
    assert out.file.getvalue() == ""


def test_the_bar_goes_away_when_the_block_is_interrupted():
    out = console(terminal=True)
    shown = []

    def work():
        with show(out) as bar:
            shown.append(bar)
            assert bar.live.is_started
            raise KeyboardInterrupt("by hand")

    with pytest.raises(KeyboardInterrupt, match="by hand"):
        work()
    assert not shown[0].live.is_started


def test_a_log_of_workers_gets_a_line_per_ten_seconds():
    clock, out = Clock(), console(terminal=False)
    with workers(out, cells=4, done=1, clock=clock) as shown:
        shown.begin(0, "standard heads 4 seed 0")
        shown.begin(1, "efficient heads 4 seed 0")
        clock.now += 10
        shown.update(0, 0.5)
        shown.end(0, finished=True)
        shown.end(1, finished=False)
        shown.tell("the worker of efficient heads 4 seed 0 was lost")
        shown.begin(1, "efficient heads 4 seed 0")
        clock.now += 10
        shown.update(1, 0.5)
    assert out.file.getvalue().splitlines() == [
        "cells 1/4, 2 in training, 38%, 0:50 left",
        "the worker of efficient heads 4 seed 0 was lost",
        "cells 2/4, 1 in training, 62%, 0:20 left",
    ]
