"""The training of a recipe, ready to be traced: model, loss, optimiser and batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError, unknown
from suffice.models import CONFIGURATIONS, ClassifierConfig, LMConfig, ViTConfig
from suffice.recipes import LM_RECIPES, RECIPES, Recipe, lm_recipe, recipe
from suffice.recipes.recipe import Sizes
from suffice.spec import AttentionSpec
from suffice.train.evaluate import ModelInputs, cross_entropy, flatten_answers
from suffice.train.language.loss import Batch, summed_loss
from suffice.train.language.settings import LMTraining
from suffice.train.optimiser import OptimiserSettings
from suffice.train.settings import Training

# of tokenizers whose size the recipe does not say; characters are those of Tiny Shakespeare
VOCABULARIES = {"gpt2": 50_257, "llama": 32_000, "characters": 65}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The training of one recipe with one mechanism.

    Args:
        name: of the recipe.
        title: in one line.
        mechanism: of the attention.
        specs: of every attention layer.
        build: makes the model.
        loss: of the model on so many rows of zeros.
        rates: of the optimiser.
        clip: largest norm of the gradient; None = not clipped.
        rows: of a step, all micro-batches and processes together.
        tokens: of a row.
        accumulate: micro-batches of a step, as the recipe says.
        dtype: of the products.
        checkpointing: whether the recipe recomputes blocks in the backward pass.
        adjustable: whether its training supports accumulation, checkpointing and sharding.
        autoregressive: whether the model generates, with a KV cache.
        steps: of the optimiser; None = the size of the data decides.
        epochs: over the data, if that decides.
    """

    name: str
    title: str
    mechanism: str
    specs: tuple[AttentionSpec, ...]
    build: Callable[[], nn.Module]
    loss: Callable[[nn.Module, int], Tensor]
    rates: OptimiserSettings
    clip: float | None
    rows: int
    tokens: int
    accumulate: int = 1
    dtype: str = "float32"
    checkpointing: bool = False
    adjustable: bool = False
    autoregressive: bool = False
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


def workload(
    name: str, *, mechanism: str | None = None, num_heads: int | None = None, scale: str = "paper"
) -> Workload:
    """Return the training of a recipe.

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
        return _lm_workload(name, mechanism, num_heads)
    if name not in RECIPES:
        raise unknown("recipe", name, [*RECIPES, *LM_RECIPES])
    return _task_workload(recipe(name, scale=scale), mechanism or "standard", num_heads)


def _lm_workload(name: str, mechanism: str | None, num_heads: int | None) -> Workload:
    changes = {"mechanism": mechanism, "num_heads": num_heads}
    recipe = lm_recipe(name)
    recipe = recipe.changed({key: value for key, value in changes.items() if value is not None})
    settings = recipe.training
    config, specs = recipe.configured(recipe.vocabulary_size or VOCABULARIES[recipe.tokenizer])
    return Workload(
        name=name,
        title=recipe.title,
        mechanism=recipe.mechanism or CONFIGURATIONS[recipe.configuration].mechanism,
        specs=tuple(specs),
        build=partial(config.build, specs),
        loss=partial(_lm_loss, settings),
        rates=settings,
        clip=settings.clip,
        rows=settings.batch_size,
        tokens=settings.length,
        accumulate=settings.accumulate,
        dtype=settings.dtype,
        checkpointing=settings.checkpointing,
        adjustable=True,
        autoregressive=True,
        steps=settings.steps,
    )


def _lm_loss(settings: LMTraining, model: nn.Module, rows: int) -> Tensor:
    tokens = torch.zeros(rows, settings.length, dtype=torch.int64)
    numbers = torch.zeros_like(tokens) if settings.documents == "separate" else None
    batch = Batch(tokens, torch.zeros_like(tokens), None, numbers)
    return summed_loss(model, batch, dtype=settings.dtype)


def _task_workload(recipe: Recipe, mechanism: str, num_heads: int | None) -> Workload:
    heads = recipe.num_heads if num_heads is None else num_heads
    sizes = recipe.model_of(mechanism)
    return Workload(
        name=recipe.name,
        title=recipe.title,
        mechanism=mechanism,
        specs=tuple(recipe.specs(mechanism, heads)),
        build=partial(recipe.build, mechanism, heads),
        loss=partial(_task_loss, recipe.training, sizes),
        rates=recipe.training,
        clip=recipe.training.clip,
        rows=recipe.training.batch_size,
        tokens=sizes.length,
        autoregressive=isinstance(sizes, LMConfig),
        epochs=recipe.training.epochs,
    )


def _task_loss(settings: Training, sizes: Sizes, model: nn.Module, rows: int) -> Tensor:
    reading, labels = _rows(sizes, rows)
    logits, labels = flatten_answers(reading.logits(model), labels)
    return cross_entropy(logits, labels, reduction="sum", label_smoothing=settings.label_smoothing)


def _rows(sizes: Sizes, rows: int) -> tuple[ModelInputs, Tensor]:
    """Return inputs for a model of these sizes and their labels: zeros, without padding."""
    if isinstance(sizes, ViTConfig):
        side = sizes.image_size
        images = torch.zeros(rows, sizes.channels, side, side)
        return ModelInputs(images), torch.zeros(rows, dtype=torch.int64)
    tokens = torch.zeros(rows, sizes.length, dtype=torch.int64)
    valid = torch.ones(rows, sizes.length, dtype=torch.bool)
    if isinstance(sizes, ClassifierConfig):
        return ModelInputs(tokens, valid), torch.zeros(rows, dtype=torch.int64)
    if isinstance(sizes, LMConfig):
        return ModelInputs(tokens), torch.zeros_like(tokens)
    return ModelInputs(tokens, valid, tokens, valid), torch.zeros_like(tokens)
