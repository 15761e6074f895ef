"""Language models that train in minutes on two cores."""

from __future__ import annotations

from suffice.recipes.language.recipe import LMRecipe
from suffice.train.language import LMTraining


def shakespeare_char(scale: str = "paper") -> LMRecipe:
    """Characters of Shakespeare's plays, nanoGPT's settings for a laptop: 4 layers of 128 features.

    The model for a GPU, of 6 layers and 384 features, is `nanogpt_char`: set configuration to it,
    length=256, batch_size=64 and dropout=0.2.

    Source: nanoGPT, README ("I only have a macbook") and config/train_shakespeare_char.py.
        Differs: 5,000 steps as the larger model has, not 2,000, and the whole validation text is
        looked at, not 20 random batches of it.
    """
    return LMRecipe(
        name="shakespeare_char",
        title="Tiny Shakespeare by characters, 4 blocks, d_model 128, 64 tokens",
        corpus="tinyshakespeare",
        tokenizer="characters",
        configuration="nanogpt_char_cpu",
        training=LMTraining(
            steps=5000,
            batch_size=12,
            length=64,
            learning_rate=1e-3,
            min_learning_rate=1e-4,
            warmup=100,
            weight_decay=0.1,
            betas=(0.9, 0.99),
            clip=1.0,
            evaluate_every=500,
        ),
    ).at(scale)


def stdlib_bpe(scale: str = "paper") -> LMRecipe:
    """Python's own standard library by 2,048 byte pairs: real text that every machine has.

    The sizes are those of shakespeare_char with rows of 128 tokens.
    """
    return LMRecipe(
        name="stdlib_bpe",
        title="Python's standard library by byte pairs, 4 blocks, d_model 128, 128 tokens",
        corpus="stdlib",
        tokenizer="bpe",
        configuration="nanogpt_char_cpu",
        options=(("vocabulary_size", 2048),),
        training=LMTraining(
            steps=2000,
            batch_size=16,
            length=128,
            learning_rate=1e-3,
            min_learning_rate=1e-4,
            warmup=100,
            weight_decay=0.1,
            betas=(0.9, 0.99),
            clip=1.0,
            evaluate_every=500,
            evaluation_batches=64,
            documents="separate",
        ),
    ).at(scale)
