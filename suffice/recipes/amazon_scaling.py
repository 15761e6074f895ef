"""The paper's scaling of models on Amazon reviews, from 5 to 25 million parameters."""

from __future__ import annotations

from suffice.recipes.amazon import sized
from suffice.recipes.recipe import Recipe

WIDTHS = {5: 120, 10: 224, 15: 328, 20: 424, 25: 512}
"""Features of a model by its parameters with Standard attention, in millions."""


def amazon_scaling_5m(scale: str = "paper") -> Recipe:
    """The smallest of five models of growing width on Amazon reviews; 5.07M parameters.

    The paper fixes the range, "from 5 Million parameters to 25 Million" (arXiv:2403.01643v3,
    figures 4 and 8). What it does not say: which models. Ours: recipe `amazon` in five widths, so
    that `amazon_scaling_5m`, `_10m`, `_15m`, `_20m` and `_25m` differ in d_model and mlp_width
    alone and only attention layers tell the mechanisms apart.

    Small: a fifth of the width, 4,000 words, the last 32 of a review, 2 epochs of 6,000 reviews.
    """
    return _grown(5, scale)


def amazon_scaling_10m(scale: str = "paper") -> Recipe:
    """See `amazon_scaling_5m`; 9.88M parameters."""
    return _grown(10, scale)


def amazon_scaling_15m(scale: str = "paper") -> Recipe:
    """See `amazon_scaling_5m`; 15.1M parameters."""
    return _grown(15, scale)


def amazon_scaling_20m(scale: str = "paper") -> Recipe:
    """See `amazon_scaling_5m`; 20.2M parameters."""
    return _grown(20, scale)


def amazon_scaling_25m(scale: str = "paper") -> Recipe:
    """See `amazon_scaling_5m`; 25.3M parameters."""
    return _grown(25, scale)


def _grown(millions: int, scale: str) -> Recipe:
    width = WIDTHS[millions]
    narrow = width // 40 * 8  # a fifth, in whole features of up to 8 heads
    return sized(
        f"amazon_scaling_{millions}m",
        f"Amazon reviews, {millions}M parameters, 3 blocks, d_model {width}, last 64 words",
        d_model=width,
    ).at(
        scale,
        title=f"Amazon reviews, for {millions}M parameters: 3 blocks, d_model {narrow}",
        task_options=(("length", 32), ("vocabulary_size", 4_000), ("rows", 6_000)),
        model={
            "length": 32,
            "vocabulary_size": 4_000,
            "d_model": narrow,
            "mlp_width": narrow,
        },
        training={"epochs": 2},
    )
