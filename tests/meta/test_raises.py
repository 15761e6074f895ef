"""Every error of the package is met by a test that reads its sentence; runs last."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.meta.raises import MATCHED, PACKAGE, all_statements

TESTS = Path(__file__).resolve().parents[1]


def test_every_raise_is_matched(request):
    ran = {item.path for item in request.session.items}
    absent = [path for path in TESTS.rglob("test_*.py") if path not in ran]
    if absent:
        pytest.skip(f"counts the raises of a whole run; {len(absent)} test files are not in it")
    missing = sorted(all_statements() - MATCHED)
    told = [f"{path.relative_to(PACKAGE.parent)}:{line}" for path, line in missing]
    assert not told, f"{len(told)} of {len(all_statements())} raises unmatched: {told}"
