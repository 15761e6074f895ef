"""What one step of a recipe's training does, but for its data."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError, unknown
from suffice.models import CONFIGURATIONS, ClassifierConfig, LMConfig, ViTConfig
from suffice.recipes import LM_RECIPES, RECIPES, Recipe, lm_recipe, recipe
from suffice.recipes.attention import Sizes
from suffice.spec import AttentionSpec
from suffice.train.answers import aligned, losses
from suffice.train.language.batch import Batch
from suffice.train.language.loss import summed
from suffice.train.language.settings import LMTraining
from suffice.train.optimiser import Rates
from suffice.train.reading import Reading
from suffice.train.settings import Training

# of the tokenizers whose size no recipe says; characters are those of Tiny Shakespeare
VOCABULARIES = {"gpt2": 50_257, "llama": 32_000, "characters": 65}


@dataclass(frozen=True, kw_only=True)
class Work:
    """One recipe with one mechanism.

    Args:
        name: of the recipe.
        title: its line for people.
        mechanism: of the attention.
        specs: of every attention layer.
        build: makes the model.
        loss: of the model on so many rows without content.
        rates: of the optimiser.
        clip: largest norm of the gradient, or None.
        rows: of a step, all micro-batches and processes together.
        tokens: of a row.
        accumulate: micro-batches of a step, as the recipe says.
        dtype: of the products.
        checkpointing: whether the recipe computes blocks anew in the backward pass.
        free: whether accumulation, checkpointing and sharding can be chosen: its training has them.
        writes: whether the model continues texts, so that its attention keeps a state.
        steps: of the optimiser; None = the size of the data decides.
        epochs: over the data, where that decides.
    """

    name: str
    title: str
    mechanism: str
    specs: tuple[AttentionSpec, ...]
    build: Callable[[], nn.Module]
    loss: Callable[[nn.Module, int], Tensor]
    rates: Rates
    clip: float | None
    rows: int
    tokens: int
    accumulate: int = 1
    dtype: str = "float32"
    checkpointing: bool = False
    free: bool = False
    writes: bool = False
    steps: int | None = None
    epochs: int | None = None

    def all_steps(self, examples: int | None) -> int | None:
        """Return the steps of the whole training; None = the size of the data is not known.

        Args:
            examples: rows of the data to learn from.

        Raises:
            ConfigError: if the recipe's steps do not depend on the data, or there is no row.
        """
        if examples is None:
            return self.steps
        if self.epochs is None:
            raise ConfigError(
                f"examples={examples}: {self.name} makes {self.steps:,} steps whatever the data; "
                "leave examples out."
            )
        if examples < 1:
            raise ConfigError(f"examples={examples}; give at least 1.")
        return self.epochs * -(-examples // self.rows)


def work(
    name: str, *, mechanism: str | None = None, num_heads: int | None = None, scale: str = "paper"
) -> Work:
    """Return what a recipe's training does.

    Args:
        name: of a recipe, also of a language model's.
        mechanism: of the attention; None = the recipe's own, "standard" where it compares several.
        num_heads: None = the recipe's own.
        scale: "paper" or "small"; recipes of language models have one.

    Raises:
        ConfigError: for an unknown name, mechanism or scale, or heads that do not fit.
    """
    if name in LM_RECIPES:
        if scale != "paper":
            raise ConfigError(f"scale={scale!r}: recipe {name} has one scale; leave it out.")
        return _of_language(name, mechanism, num_heads)
    if name not in RECIPES:
        raise unknown("recipe", name, [*RECIPES, *LM_RECIPES])
    return _of_task(recipe(name, scale=scale), mechanism or "standard", num_heads)


def _of_language(name: str, mechanism: str | None, num_heads: int | None) -> Work:
    one = lm_recipe(name)
    said = {"mechanism": mechanism, "num_heads": num_heads}
    one = one.changed({key: value for key, value in said.items() if value is not None})
    settings = one.training
    config, specs = one.configured(one.vocabulary_size or VOCABULARIES[one.tokenizer])
    return Work(
        name=name,
        title=one.title,
        mechanism=one.mechanism or _own(one.configuration),
        specs=tuple(specs),
        build=partial(config.build, specs),
        loss=partial(_language_loss, settings),
        rates=settings,
        clip=settings.clip,
        rows=settings.batch_size,
        tokens=settings.length,
        accumulate=settings.accumulate,
        dtype=settings.dtype,
        checkpointing=settings.checkpointing,
        free=True,
        writes=True,
        steps=settings.steps,
    )


def _own(named: str) -> str:
    """Return the mechanism of a configuration that says no other."""
    return inspect.signature(CONFIGURATIONS[named]).parameters["mechanism"].default


def _language_loss(settings: LMTraining, model: nn.Module, rows: int) -> Tensor:
    tokens = torch.zeros(rows, settings.length, dtype=torch.int64)
    numbers = torch.zeros_like(tokens) if settings.documents == "separate" else None
    batch = Batch(tokens, torch.zeros_like(tokens), None, numbers)
    return summed(model, batch, dtype=settings.dtype)


def _of_task(one: Recipe, mechanism: str, num_heads: int | None) -> Work:
    heads = one.num_heads if num_heads is None else num_heads
    sizes = one.model_of(mechanism)
    return Work(
        name=one.name,
        title=one.title,
        mechanism=mechanism,
        specs=tuple(one.specs(mechanism, heads)),
        build=partial(one.build, mechanism, heads),
        loss=partial(_task_loss, one.training, sizes),
        rates=one.training,
        clip=one.training.clip,
        rows=one.training.batch_size,
        tokens=sizes.length,
        writes=isinstance(sizes, LMConfig),
        epochs=one.training.epochs,
    )


def _task_loss(settings: Training, sizes: Sizes, model: nn.Module, rows: int) -> Tensor:
    reading, labels = _rows(sizes, rows)
    logits, labels = aligned(reading.answered(model), labels)
    return losses(logits, labels, reduction="sum", label_smoothing=settings.label_smoothing)


def _rows(sizes: Sizes, rows: int) -> tuple[Reading, Tensor]:
    """Return rows for a model of these sizes and their labels, all zeros, no token padding."""
    if isinstance(sizes, ViTConfig):
        side = sizes.image_size
        images = torch.zeros(rows, sizes.channels, side, side)
        return Reading(images), torch.zeros(rows, dtype=torch.int64)
    tokens = torch.zeros(rows, sizes.length, dtype=torch.int64)
    valid = torch.ones(rows, sizes.length, dtype=torch.bool)
    if isinstance(sizes, ClassifierConfig):
        return Reading(tokens, valid), torch.zeros(rows, dtype=torch.int64)
    if isinstance(sizes, LMConfig):
        return Reading(tokens), torch.zeros_like(tokens)
    return Reading(tokens, valid, tokens, valid), torch.zeros_like(tokens)
