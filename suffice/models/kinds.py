"""The kinds of models: their names in files, their attention specs, and how to rebuild them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from suffice.models.classifier import Classifier, ClassifierConfig
from suffice.models.config import ModelConfig
from suffice.models.lm import LM, LMConfig
from suffice.models.translator import Translator, TranslatorConfig
from suffice.models.vit import ViT, ViTConfig
from suffice.spec import AttentionSpec

AnyModel = ViT | Classifier | LM | Translator
Sizes = ViTConfig | ClassifierConfig | LMConfig | TranslatorConfig

KINDS: dict[str, type[ModelConfig]] = {
    "language model": LMConfig,
    "text classifier": ClassifierConfig,
    "image classifier": ViTConfig,
    "translator": TranslatorConfig,
}
"""The class of a model's sizes by the kind that files name."""


def kind_of(model: nn.Module) -> str:
    """Return the key of a model in `KINDS`."""
    return next(kind for kind, config in KINDS.items() if type(model.config) is config)


def attention_of(model: nn.Module) -> list[AttentionSpec]:
    """Return the attention of each layer, in the order that `build_model` takes."""
    if isinstance(model, Translator):
        return [*model.encoder_specs, *model.decoder_specs, *model.cross_specs]
    return [block.attention.spec for block in model.blocks]


def build_model(sizes: Sizes, specs: Sequence[AttentionSpec], **factory: Any) -> Any:
    """Return a fresh model with the attention of each layer.

    `specs` of a translator: its encoder, its decoder's self-attention, its attention to the source.
    """
    specs = list(specs)
    if not isinstance(sizes, TranslatorConfig):
        return sizes.build(specs, **factory)
    first, second = sizes.encoder_depth, sizes.encoder_depth + sizes.decoder_depth
    return sizes.build(specs[:first], specs[first:second], specs[second:], **factory)
