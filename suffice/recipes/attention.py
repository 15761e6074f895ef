"""One mechanism in every layer of a model."""

from __future__ import annotations

from typing import Any

from suffice.errors import ConfigError
from suffice.models import ClassifierConfig, LMConfig, TranslatorConfig, ViTConfig
from suffice.models.config import check_crosses
from suffice.presets import PRESETS, schedule, takes_length
from suffice.spec import AttentionSpec

Sizes = ViTConfig | ClassifierConfig | LMConfig | TranslatorConfig


def specs_of(model: Sizes, mechanism: str, num_heads: int, *, recipe: str) -> list[AttentionSpec]:
    """Return the attention of each layer, made for the model's length.

    A language model's is causal. A translator's are those of its encoder, those of its decoder,
    which are causal, and as many from the decoder to the source.

    Args:
        model: the sizes.
        mechanism: its name.
        num_heads: of every layer.
        recipe: whose model it is, for messages.

    Raises:
        ConfigError: for an unknown mechanism, one that cannot be causal or look at another text
            where it must, or heads that do not fit.
    """
    if isinstance(model, TranslatorConfig):
        return _of_translator(model, mechanism, num_heads, recipe)
    specs = _layers(model, mechanism, num_heads, model.depth)
    if not isinstance(model, LMConfig):
        return specs
    return _causal(model, mechanism, num_heads, model.depth, f"language model of recipe {recipe}")


def built(model: Sizes, specs: list[AttentionSpec]) -> Any:
    """Return a model with the attention that `specs_of` gave."""
    if not isinstance(model, TranslatorConfig):
        return model.build(specs)
    first, second = model.encoder_depth, model.encoder_depth + model.decoder_depth
    return model.build(specs[:first], specs[first:second], specs[second:])


def _of_translator(
    model: TranslatorConfig, mechanism: str, num_heads: int, recipe: str
) -> list[AttentionSpec]:
    encoder, cross = (
        _layers(model, mechanism, num_heads, depth)
        for depth in (model.encoder_depth, model.decoder_depth)
    )
    decoder = _causal(
        model, mechanism, num_heads, model.decoder_depth, f"decoder of recipe {recipe}"
    )
    try:
        check_crosses(cross)
    except ConfigError as error:
        raise ConfigError(
            f"{mechanism} cannot look at another text, which the decoder of recipe {recipe} does; "
            f"leave it out, or compare it on another task. {error}"
        ) from error
    return [*encoder, *decoder, *cross]


def _layers(
    model: Sizes, mechanism: str, num_heads: int, depth: int, **options: Any
) -> list[AttentionSpec]:
    if mechanism in PRESETS and takes_length(mechanism):
        options["length"] = model.length
    return schedule(mechanism, model.d_model, num_heads, depth=depth, **options)


def _causal(
    model: Sizes, mechanism: str, num_heads: int, depth: int, needed_by: str
) -> list[AttentionSpec]:
    try:
        return _layers(model, mechanism, num_heads, depth, causal=True)
    except ConfigError as error:
        raise ConfigError(
            f"{mechanism} cannot be causal, which the {needed_by} needs; leave it out, or compare "
            f"it on another task. {error}"
        ) from error
