"""A small language model on the passkey task."""

from __future__ import annotations

from suffice.models import LMConfig
from suffice.recipes.recipe import Recipe
from suffice.train.settings import Training


def passkey(scale: str = "paper") -> Recipe:
    """Two causal blocks of 64 features find a number of 3 digits among 3 others in 64 tokens.

    It tests reach: through a window, only a row whose passkey lies near its end can be answered.
    Sums of features do reach, and only have to keep the passkey apart from the other numbers. A
    blind guess of a digit is right in 1 of 10.
    """
    return Recipe(
        name="passkey",
        title="Passkey among 3 other numbers, language model of 2 blocks, d_model 64, 64 tokens",
        task="passkey",
        task_options=(("length", 64), ("digits", 3), ("decoys", 3)),
        model=LMConfig(
            vocabulary_size=21, length=64, d_model=64, depth=2, mlp_width=128, tied=False, start=0.1
        ),
        training=Training(
            epochs=4,
            batch_size=64,
            learning_rate=3e-3,
            warmup=0.1,
            schedule="cosine",
            clip=1.0,
        ),
        num_heads=2,
    ).at(scale)
