"""SIGTERM and SIGHUP end a command as Ctrl-C does."""

from __future__ import annotations

import os
import signal

import pytest

from suffice.models import folder
from suffice.utils.progress import Display
from tools.kills.cases import CASES, _inputs


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no such signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_training_that_is_asked_to_end_is_resumed(name, suffice, monkeypatch, tmp_path):
    _inputs(tmp_path)
    words = [word for word in CASES["train"].words if word != "--quiet"]
    step, number = Display.step, getattr(signal, name)

    def send(self, done, total):
        step(self, done, total)
        if done == 3:
            os.kill(os.getpid(), number)

    before = signal.signal(number, signal.SIG_DFL)  # under nohup one of them is ignored
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Display, "step", send)
            ended = suffice(*words)
    finally:
        signal.signal(number, before)
    assert ended.exit_code == 130
    assert "interrupted. Finished work is kept" in ended.message
    assert suffice(*words, "--resume").exit_code == 0
    assert folder.load(tmp_path / "out")[2]["measured"]["step"] == 6
