"""A small language model on the passkey task."""

from __future__ import annotations

from suffice.recipes.recipe import Recipe
from suffice.recipes.small_lm import SmallLMConfig
from suffice.train.settings import Training


def passkey() -> Recipe:
    """Two causal blocks of 64 features find a number of 4 digits among 5 others in 96 tokens.

    Only a row whose passkey lies near its end can be answered through a window; sums of smooth
    features mix the passkey with the other numbers. A blind guess of a digit is right in 1 of 10.
    """
    return Recipe(
        name="passkey",
        title="Passkey among 5 other numbers, language model of 2 blocks, d_model 64, 96 tokens",
        task="passkey",
        task_options=(("length", 96), ("digits", 4), ("decoys", 5)),
        model=SmallLMConfig(
            vocabulary_size=21, length=96, d_model=64, depth=2, mlp_width=128, tied=False
        ),
        training=Training(
            epochs=5,
            batch_size=64,
            learning_rate=3e-3,
            warmup=0.1,
            schedule="cosine",
            clip=1.0,
        ),
        num_heads=2,
    )
