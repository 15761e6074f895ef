"""How a command ends when it cannot go on, seen from inside."""

from __future__ import annotations

import re
import sys

import pytest

from suffice.cli.terminal import Stopped, resumable
from suffice.errors import DataError
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
    for name, ends in ((".lock", DataError), ("plan.json", DataError), ("cell.json", Stopped)):
        (tmp_path / "new").mkdir(exist_ok=True)
        (tmp_path / "new" / name).touch()
        with pytest.raises(ends) as end, resumable(tmp_path / "new"):
            raise DataError("no room.")
    assert re.match(rf"^error: no room\.\n{ADVICE}", str(end.value))
    assert end.value.code == 2
