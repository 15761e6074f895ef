"""Names that the shell completes."""

from __future__ import annotations

import pytest

from suffice.cli import completed


@pytest.mark.parametrize(
    ("names", "typed", "wanted"),
    [
        (completed.mechanisms, "lin", ["linear", "linformer"]),
        (completed.mechanisms, "gqa,mq", ["gqa,mqa"]),
        (completed.mechanisms, "gqa,x", []),
        (completed.tasks, "imd", ["imdb"]),
        (completed.recipes, "womens", ["womens_clothing"]),
        (completed.every_recipe, "nano", ["nanogpt_124m"]),
        (completed.every_recipe, "digits", ["digits_vit"]),
        (completed.language_recipes, "", sorted(completed.language_recipes(""))),
        (completed.tables, "fl", ["flops"]),
        (completed.tables, "v2-im", ["v2-imagenet", "v2-imagenet-equal", "v2-imdb"]),
    ],
)
def test_names_that_begin_as_typed_are_given(names, typed, wanted):
    assert sorted(names(typed)) == wanted
