from __future__ import annotations

import os
import signal
import threading

import pytest

from suffice.train.engine import catching_interrupts


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_press_is_noticed_and_the_second_interrupts_at_once():
    before = signal.getsignal(signal.SIGINT)
    reached = []

    def work():
        with catching_interrupts() as interrupts:
            assert not interrupts.pressed
            press()
            assert interrupts.pressed
            reached.append("after the first")
            press()
            reached.append("after the second")

    with pytest.raises(KeyboardInterrupt, match="interrupted twice"):
        work()
    assert reached == ["after the first"]
    assert signal.getsignal(signal.SIGINT) is before


def test_torchrun_may_send_a_signal_again_before_the_first_is_told(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    before, reached = signal.getsignal(signal.SIGINT), []

    def work():
        with catching_interrupts() as interrupts:
            press()
            press()
            reached.append(interrupts.pressed)

    try:
        with pytest.raises(KeyboardInterrupt, match="^interrupted at the end"):
            work()
        press()  # while what was saved is told
        reached.append("told")
    finally:
        signal.signal(signal.SIGINT, before)
    assert reached == [True, "told"]


def test_a_press_after_the_last_check_is_not_lost():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="^interrupted at the end"), catching_interrupts():
        press()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_that_is_not_python_s_gives_way_to_the_default(monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    real, calls = signal.signal, []

    def foreign(number, handler):
        calls.append(handler)
        real(number, handler)

    monkeypatch.setattr(signal, "signal", foreign)
    try:
        with catching_interrupts() as interrupts:
            assert calls == [interrupts.notice]
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    finally:
        real(signal.SIGINT, before)


def test_another_thread_installs_nothing():
    before, signals = signal.getsignal(signal.SIGINT), []

    def work():
        with catching_interrupts() as interrupts:
            signals.append((signal.getsignal(signal.SIGINT), interrupts.pressed))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert signals == [(before, False)]
