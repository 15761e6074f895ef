"""What several tests of ops share."""

from __future__ import annotations

import pytest

from suffice.ops.dispatch import forget_plans
from suffice.ops.native import attention


@pytest.fixture
def without_kernels(monkeypatch):
    """The library as it is where no native kernels were built."""
    monkeypatch.setattr(attention, "MISSING", "they were not built")
    forget_plans()
    yield
    forget_plans()
