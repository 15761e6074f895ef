"""How a command ends when it cannot go on, seen from inside."""

from __future__ import annotations

import pytest

from suffice.cli.compare import compare
from suffice.cli.show import show
from suffice.cli.terminal import Stopped, telling
from suffice.errors import ConfigError, DataError
from suffice.train import Interrupted


def test_an_interruption_tells_how_to_go_on(tmp_path):
    told = r"^\ninterrupted\. What was done is kept\. Go on with:\n  suffice compare --resume$"
    for error in (KeyboardInterrupt(), Interrupted(None, epoch=1, step=2)):
        with (
            pytest.raises(Stopped, match=told) as end,
            telling("suffice compare --resume", tmp_path),
        ):
            raise error
        assert end.value.code == 130


def test_an_error_tells_how_to_go_on(tmp_path):
    told = r"^error: no room\.\nWhat was done is kept\. Go on with:\n  suffice again$"
    with pytest.raises(Stopped, match=told) as end, telling("suffice again", tmp_path):
        raise DataError("no room.")
    assert end.value.code == 2
    with (
        pytest.raises(DataError, match=r"^no room\.$"),
        telling("suffice again", tmp_path / "none"),
    ):
        raise DataError("no room.")


def test_a_good_end_tells_nothing(tmp_path):
    with telling("suffice again", tmp_path):
        done = True
    assert done


def test_a_command_refuses_what_it_cannot_do():
    with pytest.raises(ConfigError, match="unknown cost 'flop'; did you mean 'flops'"):
        compare(cost="flop")
    with pytest.raises(ConfigError, match="--length 0 --batch 1: give at least 1 of each"):
        show("standard", length=0, batch=1)
