"""A small language model on induction."""

from __future__ import annotations

from suffice.models import LMConfig
from suffice.recipes.recipe import Recipe
from suffice.train.settings import Training


def induction(scale: str = "paper") -> Recipe:
    """Two causal blocks of 64 features continue a stretch of 16 symbols seen before.

    A block has to find the same symbol and another one to have passed on what stood before: the
    circuit behind in-context copying. Windows shorter than the way back cannot. A guess among
    the symbols not yet repeated is right in about 1 of 11 answers.
    """
    return Recipe(
        name="induction",
        title="Induction, 8 of 16 symbols again, language model of 2 blocks, d_model 64, 24 tokens",
        task="induction",
        task_options=(("symbols", 16), ("length", 16), ("repeated", 8)),
        model=LMConfig(
            vocabulary_size=16, length=24, d_model=64, depth=2, mlp_width=128, tied=False, start=0.1
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
