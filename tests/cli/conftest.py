"""The command line as a user meets it: words in, exit code and both streams out."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from dataclasses import dataclass

import pytest

from suffice.cli import main
from suffice.comparison import compare
from suffice.utils.progress import Display


@dataclass(frozen=True)
class Result:
    exit_code: int
    stdout: str
    stderr: str

    @property
    def message(self) -> str:
        """Standard error in one line, as one reads it."""
        return " ".join(self.stderr.split())


@pytest.fixture
def suffice(monkeypatch, capfd, tmp_path):
    """Call the program with words; nothing it finds or writes lies outside the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SUFFICE_DATA", raising=False)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setattr(compare, "ROUNDS", 2)
    monkeypatch.setattr(compare, "SAMPLE_SECONDS", 1e-4)

    def call(*words: object) -> Result:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["suffice", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        stdout, stderr = capfd.readouterr()
        assert "Traceback" not in stderr
        return Result(0 if end.value.code is None else end.value.code, stdout, stderr)

    return call


@pytest.fixture
def press_at(monkeypatch):
    """Press Ctrl-C at the n-th training step that is shown."""

    def arrange(number: int) -> None:
        step, numbers = Display.step, itertools.count(1)

        def press(self, done: int, total: int) -> None:
            step(self, done, total)
            if next(numbers) == number:
                os.kill(os.getpid(), signal.SIGINT)

        monkeypatch.setattr(Display, "step", press)

    return arrange
