"""How a command ends when it cannot go on, seen from inside."""

from __future__ import annotations

import sys

import pytest

from suffice.cli.compare import compare
from suffice.cli.show import show
from suffice.cli.terminal import Stopped, resumable
from suffice.errors import ConfigError, DataError
from suffice.train import Interrupted

ADVICE = r"Finished work is kept. Resume with:\n  .*suffice compare --out .* --resume$"


@pytest.fixture(autouse=True)
def words(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["suffice", "compare"])


def test_an_interruption_prints_the_command_that_resumes(tmp_path):
    for error in (KeyboardInterrupt(), Interrupted(None, epoch=1, step=2)):
        with (
            pytest.raises(Stopped, match=rf"^\ninterrupted\. {ADVICE}") as end,
            resumable(tmp_path),
        ):
            raise error
        assert end.value.code == 130


def test_an_error_prints_the_command_that_resumes_if_there_is_something_to_resume(tmp_path):
    with pytest.raises(Stopped, match=rf"^error: no room\.\n{ADVICE}") as end, resumable(tmp_path):
        raise DataError("no room.")
    assert end.value.code == 2
    with pytest.raises(DataError, match=r"^no room\.$"), resumable(tmp_path / "none"):
        raise DataError("no room.")


def test_a_good_end_prints_nothing(tmp_path, capsys):
    with resumable(tmp_path):
        pass
    assert capsys.readouterr() == ("", "")


def test_a_command_refuses_what_it_cannot_do():
    with pytest.raises(ConfigError, match="unknown cost 'flop'; did you mean 'flops'"):
        compare(cost="flop")
    with pytest.raises(ConfigError, match="--length 0: give at least 1"):
        show("standard", length=0, batch=1)
