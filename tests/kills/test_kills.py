"""Kill -9 before the renames of every verb that writes: what is left is whole.

`python -m tests.kills` kills before every write, not only before those that change a name.
"""

from __future__ import annotations

import os
import re

import click
import pytest

from suffice.cli import VERBS, _load
from tests.kills.cases import CASES
from tests.kills.killing import kill_at_each_write

OUTPUTS = re.compile(r"out|export|png|svg|flow")


def test_every_verb_with_an_output_is_killed():
    """A new verb that writes has a case."""
    writing = {
        verb
        for verb in VERBS
        for option in _load(verb).params
        if option.name and OUTPUTS.fullmatch(option.name) and not isinstance(option, click.Argument)
    }
    assert writing == CASES.keys()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a copy of itself")
@pytest.mark.parametrize("verb", CASES)
def test_a_killed_verb_leaves_the_old_or_the_new_or_what_can_be_resumed(verb, tmp_path):
    deaths = kill_at_each_write(CASES[verb], tmp_path, every=False)
    wrong = [death for death in deaths if not death.right]
    assert not wrong, wrong
    assert deaths[0].left in ("the old one", "nothing to read yet")
