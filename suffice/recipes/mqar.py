"""A small language model on multi-query associative recall."""

from __future__ import annotations

from suffice.models import LMConfig
from suffice.recipes.recipe import Recipe
from suffice.train.settings import Training


def mqar(scale: str = "paper") -> Recipe:
    """Two causal blocks of 64 features recall 8 values by their keys, see `suffice.data`.

    Exact recall over the whole row: a window that does not reach the pairs cannot answer at all,
    and sums of smooth features blur which value was whose. A guess among the values of a row is
    right in 1 of 8 answers.
    """
    return Recipe(
        name="mqar",
        title="Associative recall of 8 pairs, language model of 2 blocks, d_model 64, 24 tokens",
        task="mqar",
        task_options=(("pairs", 8), ("keys", 16), ("values", 16)),
        model=LMConfig(
            vocabulary_size=32, length=24, d_model=64, depth=2, mlp_width=128, tied=False, start=0.1
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
