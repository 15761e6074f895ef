"""Former names import the modules of today, never a second copy of them."""

from __future__ import annotations

from importlib import import_module

import pytest

from suffice.utils import FORMER


@pytest.mark.parametrize(("old", "new"), FORMER.items())
def test_a_former_name_is_the_same_module(old, new):
    assert import_module(old) is import_module(new)


def test_modules_of_a_former_package_are_the_same():
    assert import_module("suffice.measure.plan") is import_module("suffice.comparison.plan")
    with pytest.raises(ModuleNotFoundError, match="nothing"):
        import_module("suffice.measure.nothing")
