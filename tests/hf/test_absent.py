"""The extra is optional, and named where it is absent."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from suffice.errors import ConfigError


def test_an_absent_transformers_is_named(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == "transformers" else find_spec(name),
    )
    monkeypatch.delitem(sys.modules, "suffice.hf", raising=False)
    with pytest.raises(ConfigError, match=r"\[hf\]"):
        importlib.import_module("suffice.hf")
