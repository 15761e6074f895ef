"""The adviser's form, before and beside the adviser."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from types import ModuleType

import pytest

from suffice.errors import ConfigError
from suffice.studio.server import advice


@dataclass(frozen=True, kw_only=True)
class Request:
    task: str
    length: int | None = None
    latency: float | None = None
    minutes: float | None = None


@dataclass(frozen=True)
class Advice:
    request: Request

    def to_json(self):
        return {"winner": "efficient", "request": asdict(self.request)}


@pytest.fixture
def adviser(monkeypatch):
    module = ModuleType("suffice.advise")
    module.Request, module.advise = Request, Advice
    monkeypatch.setitem(sys.modules, "suffice.advise", module)


def test_the_form_asks_the_adviser(adviser):
    told = advice({"task": "lm", "length": 64, "latency": None})
    assert told == {
        "winner": "efficient",
        "request": {"task": "lm", "length": 64, "latency": None, "minutes": None},
    }


def test_wrong_forms_are_refused(adviser):
    with pytest.raises(ConfigError, match="asked with a form of fields"):
        advice([])
    with pytest.raises(ConfigError, match="unknown field of the adviser 'lenght'"):
        advice({"task": "lm", "lenght": 3})


def test_without_an_adviser_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "suffice.advise", None)
    with pytest.raises(ConfigError, match="this version of suffice has no adviser"):
        advice({"task": "lm"})
