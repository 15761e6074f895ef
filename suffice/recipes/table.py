"""A text classifier for a table of the user's own."""

from __future__ import annotations

from suffice.models import ClassifierConfig
from suffice.recipes.recipe import Recipe
from suffice.train.settings import Training

OF_ANY = "A table of texts and classes"
"""What the title begins with until a file is named."""


def table(scale: str = "paper") -> Recipe:
    """A table of texts and classes: two layers, d 64, the last 64 words, minutes on two cores.

    Of no paper. Unlike in the recipes of the papers, padding is not read: attention and the mean
    over positions leave it out. The number of classes is that of the file, see `of_user`.
    """
    return Recipe(
        name="table",
        title=f"{OF_ANY}, 2 blocks, d_model 64, last 64 words",
        task="table",
        task_options=(("length", 64), ("vocabulary_size", 20_000)),
        model=ClassifierConfig(
            vocabulary_size=20_000,
            length=64,
            num_classes=2,
            d_model=64,
            depth=2,
            mlp_width=64,
            head_widths=(20,),
            dropout=0.1,
        ),
        training=Training(epochs=5, batch_size=64, learning_rate=1e-3),
        num_heads=4,
    ).at(scale)
