"""The record of matched raises, by which a whole run is judged (conftest)."""

from __future__ import annotations

import pytest

from suffice.errors import ConfigError
from suffice.patterns import Window
from tests.meta import raises


def test_a_matched_raise_is_recorded(monkeypatch):
    monkeypatch.setattr(raises, "MATCHED", set())
    before = raises.unmatched()
    with pytest.raises(ConfigError, match="holds no key") as met:
        Window(0)
    statement = raises.statement_of(met.tb)
    assert statement in raises.all_statements()
    raises.MATCHED.add(statement)
    (gone,) = set(before) - set(raises.unmatched())
    assert gone.startswith("suffice/patterns/window.py:")


def test_a_part_of_the_files_is_no_whole_run():
    files = set(raises.TESTS.rglob("test_*.py"))
    assert raises.is_whole(files)
    assert not raises.is_whole(files - {next(iter(files))})
