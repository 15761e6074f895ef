"""A small vision Transformer on scikit-learn's handwritten digits."""

from __future__ import annotations

from suffice.models import ViTConfig
from suffice.recipes.recipe import Recipe
from suffice.train.settings import Training


def digits_vit(scale: str = "paper") -> Recipe:
    """Two blocks of 64 features on 8x8 digits cut into 16 patches of 2x2 pixels.

    The default of `suffice compare`: real images, no download, seconds per cell on two cores.
    """
    return Recipe(
        name="digits_vit",
        title="Digits 8x8, ViT of 2 blocks, d_model 64, 16 patches",
        task="digits",
        model=ViTConfig(
            image_size=8,
            patch_size=2,
            num_classes=10,
            d_model=64,
            depth=2,
            mlp_width=128,
            pooling="flatten",
        ),
        training=Training(
            epochs=20,
            batch_size=64,
            learning_rate=2e-3,
            weight_decay=0.05,
            warmup=0.1,
            schedule="cosine",
            clip=1.0,
        ),
        num_heads=4,
    ).at(scale)
