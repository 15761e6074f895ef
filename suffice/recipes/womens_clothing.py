"""A second set of reviews, under a free licence, for the models of Amazon reviews."""

from __future__ import annotations

from dataclasses import replace

from suffice.recipes.amazon import sized
from suffice.recipes.recipe import Recipe

WORDS = 13_000  # nearly all there are


def womens_clothing(scale: str = "paper") -> Recipe:
    """Reviews of women's clothing by the model and the training of `amazon`, with 13,000 words.

    No experiment of the paper: the reviews of `amazon` may not be passed on, these may.

    Small: 4,000 words, the last 32 of a review, two layers, 3 epochs of 12,000 reviews.
    """
    large = sized("womens_clothing", "", d_model=64)
    return replace(
        large,
        title="Reviews of women's clothing, 3 blocks, d_model 64, last 64 words",
        task="womens_clothing",
        task_options=(("length", 64), ("vocabulary_size", WORDS)),
        model=replace(large.model, vocabulary_size=WORDS),
    ).at(
        scale,
        title="Reviews of women's clothing, 2 blocks, d_model 64, last 32 words",
        task_options=(("length", 32), ("vocabulary_size", 4_000), ("rows", 12_000)),
        model={"length": 32, "vocabulary_size": 4_000, "depth": 2},
        training={"epochs": 3},
    )
