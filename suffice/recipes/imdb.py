"""The paper's text classifier on IMDB."""

from __future__ import annotations

from suffice.models import ClassifierConfig
from suffice.recipes.recipe import Recipe
from suffice.train.settings import Training


def imdb(scale: str = "paper") -> Recipe:
    """IMDB as in arXiv:2403.01643, table 8 of version 2: one layer, d 32, 32 tokens.

    The paper fixes one attention layer, d_model and context length 32, and the size ("650K": this
    model has 648,190 parameters with Standard attention). What it does not say is taken from the
    Keras example it builds on (text classification with a Transformer): 20,000 words, the last 32
    words of a review, padding in front and read like any token, post-norm with eps 1e-6, ReLU MLP
    of 32, dropout 0.1, the mean over positions, a head of 20 ReLU features, Adam at 1e-3. From the
    authors' code: batches of 64, 10 epochs, a tenth of the training set held out. Ours: weights of
    the best validation loss are kept (the authors keep the best accuracy).

    Args:
        scale: "small" for 5,000 words, d 16 and 3 epochs.
    """
    return Recipe(
        name="imdb",
        title="IMDB reviews, 1 block, d_model 32, last 32 words (arXiv:2403.01643v2)",
        task="imdb",
        task_options=(("length", 32), ("vocabulary_size", 20_000)),
        model=ClassifierConfig(
            vocabulary_size=20_000,
            length=32,
            num_classes=2,
            d_model=32,
            depth=1,
            mlp_width=32,
            head_widths=(20,),
            dropout=0.1,
            reads_padding=True,
        ),
        training=Training(epochs=10, batch_size=64, learning_rate=1e-3),
        num_heads=4,
    ).at(
        scale,
        title="IMDB reviews, 1 block, d_model 16, last 32 of 5,000 words",
        task_options=(("length", 32), ("vocabulary_size", 5_000)),
        model={"vocabulary_size": 5_000, "d_model": 16, "mlp_width": 16},
        training={"epochs": 3},
    )
