"""A small language model on copying."""

from __future__ import annotations

from suffice.models import LMConfig
from suffice.recipes.recipe import Recipe
from suffice.train.settings import Training


def copy(scale: str = "paper") -> Recipe:
    """Two causal blocks of 64 features repeat 8 to 12 symbols of 32 behind a mark.

    The stretch lies as far back as it is long, so windows shorter than 8 tokens cannot, and sums
    of features have to keep every symbol with its place. A blind guess is right in 1 of 32.
    """
    return Recipe(
        name="copy",
        title="Copying 8 to 12 symbols, language model of 2 blocks, d_model 64, 32 tokens",
        task="copy",
        task_options=(("symbols", 32), ("shortest", 8), ("length", 12), ("room", 16)),
        model=LMConfig(
            vocabulary_size=34, length=32, d_model=64, depth=2, mlp_width=128, tied=False, start=0.1
        ),
        training=Training(
            epochs=8,
            batch_size=64,
            learning_rate=3e-3,
            warmup=0.1,
            schedule="cosine",
            clip=1.0,
        ),
        num_heads=2,
    ).at(scale)
