from __future__ import annotations

import pytest

from suffice.cli.asked import Asked
from suffice.cli.own_data import with_data
from suffice.errors import ConfigError
from suffice.measure.plan import read_kept
from suffice.recipes import recipe


def test_files_of_the_user_become_an_option_of_the_task():
    plan = Asked(recipe="amazon", data="mine.jsonl").plan()
    assert plan.recipe.task_options == (*recipe("amazon").task_options, ("path", "mine.jsonl"))
    assert Asked(recipe="amazon").plan().recipe == recipe("amazon")
    assert with_data(recipe("digits_vit"), None, None) == recipe("digits_vit")


def test_a_resumed_comparison_keeps_its_files(tmp_path):
    first = Asked(recipe="translation_es", scale="small", data="europarl").plan()
    first.claim(tmp_path, resume=False)
    kept = read_kept(tmp_path)
    assert Asked().plan(kept) == first
    Asked().plan(kept).claim(tmp_path, resume=True)
    moved = Asked(data="elsewhere").plan(kept)
    assert dict(moved.recipe.task_options)["path"] == "elsewhere"
    with pytest.raises(ConfigError, match="holds a comparison of another recipe"):
        moved.claim(tmp_path, resume=True)


def test_a_task_that_reads_no_files_of_the_user_refuses_them():
    with pytest.raises(ConfigError, match="--data x: task digits reads its own data; leave it out"):
        Asked(recipe="digits_vit", data="x").plan()
