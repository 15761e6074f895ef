"""Kill -9 before the renames of every verb that writes: what is left is whole.

`python -m tools.kills` kills before every write, not only before those that change a name.
"""

from __future__ import annotations

import os

import pytest

from suffice.cli import VERBS
from tests.cli.introspect import names_output, parameters
from tools.kills.cases import CASES
from tools.kills.killing import kill_at_each_write


def test_every_verb_with_an_output_is_killed():
    """A new verb that writes has a case."""
    assert {option.verb for option in parameters(VERBS) if names_output(option)} == CASES.keys()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a copy of itself")
@pytest.mark.parametrize("most", [2, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("verb", CASES)
def test_a_killed_verb_leaves_the_old_or_the_new_or_what_can_be_resumed(verb, most, tmp_path):
    """Before two renames; before all of them at night."""
    deaths = kill_at_each_write(CASES[verb], tmp_path, every=False, most=most)
    wrong = [death for death in deaths if not death.right]
    assert not wrong, wrong
    if most is None:
        assert deaths[0].left in ("the old one", "nothing to read yet")
