"""Names that the shell completes."""

from __future__ import annotations

import pytest

from suffice.cli import _load
from suffice.train.recipes import LM_RECIPES


def of(verb, parameter):
    """Return the function that completes a parameter of a verb."""
    [found] = [one for one in _load(verb).params if one.name == parameter]
    return lambda typed: [item.value for item in found.shell_complete(None, typed)]


@pytest.mark.parametrize(
    ("names", "typed", "wanted"),
    [
        (of("compare", "mechanisms"), "gqa,mq", ["gqa,mqa"]),
        (of("compare", "mechanisms"), "gqa,zz", []),
        (of("compare", "task"), "imd", ["imdb"]),
        (of("compare", "recipe"), "womens", ["womens_clothing"]),
        (of("train", "recipe"), "", sorted(LM_RECIPES)),
    ],
)
def test_names_that_begin_as_typed_are_given(names, typed, wanted):
    assert sorted(names(typed)) == wanted
