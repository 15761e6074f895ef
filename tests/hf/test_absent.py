"""The extra is optional, and named where it is absent."""

from __future__ import annotations

import importlib
import sys

import pytest

from suffice.errors import ConfigError


def test_an_absent_transformers_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "suffice.hf", raising=False)
    with pytest.raises(ConfigError, match=r"suffice\.hf needs transformers, .*\[hf\]"):
        importlib.import_module("suffice.hf")
