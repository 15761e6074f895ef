"""Names that the shell completes."""

from __future__ import annotations

import pytest

from suffice.cli import options


@pytest.mark.parametrize(
    ("names", "typed", "wanted"),
    [
        (options.mechanisms, "lin", ["linear", "linformer"]),
        (options.mechanisms, "gqa,mq", ["gqa,mqa"]),
        (options.mechanisms, "gqa,x", []),
        (options.tasks, "imd", ["imdb"]),
        (options.recipes, "womens", ["womens_clothing"]),
        (options.every_recipe, "nano", ["nanogpt_124m"]),
        (options.every_recipe, "digits", ["digits_vit"]),
        (options.language_recipes, "", sorted(options.language_recipes(""))),
        (options.tables, "fl", ["flops"]),
        (options.tables, "v2-im", ["v2-imagenet", "v2-imagenet-equal", "v2-imdb"]),
    ],
)
def test_names_that_begin_as_typed_are_given(names, typed, wanted):
    assert sorted(names(typed)) == wanted
