"""A small language model on text, by epochs, so that mechanisms can be compared on it."""

from __future__ import annotations

from suffice.models import LMConfig
from suffice.recipes.recipe import Recipe
from suffice.train.settings import Training


def lm_small(scale: str = "paper") -> Recipe:
    """Characters of Shakespeare's plays, nanoGPT's model for a laptop: 4 blocks of 128 features.

    The sizes are those of `shakespeare_char`; here every row of the text is read once an epoch, so
    that seeds are paired, and the last tenth of the plays, which nothing is chosen by, is the test.
    The loss is in nats per character. No experiment of the paper at either scale: its language
    models are `nanogpt_124m` and `llama_1b_efficient`, which `suffice train` trains.

    Small: 2 blocks of 64 features, 3 epochs of 6,000 of 13,900 rows.
    """
    return Recipe(
        name="lm_small",
        title="Tiny Shakespeare by characters, language model of 4 blocks, d_model 128, 64 tokens",
        task="text",
        task_options=(("corpus", "tinyshakespeare"), ("tokenizer", "characters"), ("length", 64)),
        model=LMConfig(vocabulary_size=65, length=64, d_model=128, depth=4, mlp_width=512),
        training=Training(
            epochs=5,
            batch_size=12,
            learning_rate=1e-3,
            weight_decay=0.1,
            betas=(0.9, 0.99),
            warmup=0.02,
            schedule="cosine",
            clip=1.0,
        ),
        num_heads=4,
    ).at(
        scale,
        title="Tiny Shakespeare by characters, language model of 2 blocks, d_model 64, 64 tokens",
        task_options=(
            ("corpus", "tinyshakespeare"),
            ("tokenizer", "characters"),
            ("length", 64),
            ("rows", 6_000),
        ),
        model={"d_model": 64, "depth": 2, "mlp_width": 256, "start": 0.1},
        training={"epochs": 3, "batch_size": 32, "learning_rate": 3e-3, "warmup": 0.1},
    )
