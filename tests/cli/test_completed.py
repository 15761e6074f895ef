"""Names that the shell completes."""

from __future__ import annotations

import pytest

from suffice.cli import options
from suffice.cli.reproduce import complete_tables


@pytest.mark.parametrize(
    ("names", "typed", "wanted"),
    [
        (options.complete_mechanisms, "lin", ["linear", "linformer"]),
        (options.complete_mechanisms, "gqa,mq", ["gqa,mqa"]),
        (options.complete_mechanisms, "gqa,zz", []),
        (options.complete_tasks, "imd", ["imdb"]),
        (options.complete_recipes, "womens", ["womens_clothing"]),
        (options.complete_all_recipes, "nano", ["nanogpt_124m"]),
        (options.complete_all_recipes, "digits", ["digits_vit"]),
        (options.complete_lm_recipes, "", sorted(options.complete_lm_recipes(""))),
        (complete_tables, "fl", ["flops"]),
        (complete_tables, "v2-im", ["v2-imagenet", "v2-imagenet-equal", "v2-imdb"]),
    ],
)
def test_names_that_begin_as_typed_are_given(names, typed, wanted):
    assert sorted(names(typed)) == wanted
