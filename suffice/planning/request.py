"""What is asked of a plan, and what of it a recipe's training does not have."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError, unknown
from suffice.models import CONFIGURATIONS, ClassifierConfig, LMConfig, ViTConfig
from suffice.planning.devices import Device
from suffice.recipes import LM_RECIPES, RECIPES, Recipe, lm_recipe, recipe
from suffice.recipes.recipe import Sizes
from suffice.spec import AttentionSpec
from suffice.train.evaluate import ModelInputs, cross_entropy, flatten_answers
from suffice.train.language.loss import Batch, summed_loss
from suffice.train.language.settings import LMTraining
from suffice.train.optimiser import AdamWSettings
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
    rates: AdamWSettings
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
    return CONFIGURATIONS[named].mechanism


def _language_loss(settings: LMTraining, model: nn.Module, rows: int) -> Tensor:
    tokens = torch.zeros(rows, settings.length, dtype=torch.int64)
    numbers = torch.zeros_like(tokens) if settings.documents == "separate" else None
    batch = Batch(tokens, torch.zeros_like(tokens), None, numbers)
    return summed_loss(model, batch, dtype=settings.dtype)


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
    logits, labels = flatten_answers(reading.logits(model), labels)
    return cross_entropy(logits, labels, reduction="sum", label_smoothing=settings.label_smoothing)


def _rows(sizes: Sizes, rows: int) -> tuple[ModelInputs, Tensor]:
    """Return rows for a model of these sizes and their labels, all zeros, no token padding."""
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


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The hardware, and what is decided already.

    Args:
        gpus: how many.
        memory: bytes of each; None = the device's.
        shard: cut the weights between them, or not; None = whichever is faster and fits.
        checkpointing: compute blocks anew in the backward pass, or not; None = likewise.
        accumulate: micro-batches of a step; None = the fewest that fit.
        examples: rows of the data to learn from, where the recipe counts epochs.
        network: bytes a second to other nodes for each GPU; None = the device's.
        price: of a GPU for an hour; None = not known.
        reached: share of the roofline to count on.

    Raises:
        ConfigError: if a number is not legal.

    Example:
        >>> Asked(gpus=0, price=-1.0)
        Traceback (most recent call last):
        suffice.errors.ConfigError: gpus=0; give an integer >= 1. price=-1.0; give a number above 0.
    """

    gpus: int = 1
    memory: int | None = None
    shard: bool | None = None
    checkpointing: bool | None = None
    accumulate: int | None = None
    examples: int | None = None
    network: float | None = None
    price: float | None = None
    reached: float = 1.0

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name in ("gpus", "accumulate", "memory")}
        rates = {name: getattr(self, name) for name in ("network", "price")}
        wrong = [
            f"{k}={v}; give an integer >= 1." for k, v in counts.items() if v is not None and v < 1
        ]
        wrong += [
            f"{k}={v}; give a number above 0."
            for k, v in rates.items()
            if v is not None and not 0.0 < v < math.inf
        ]
        if not 0.0 < self.reached <= 1.0:
            wrong.append(f"reached={self.reached}; give a share above 0, up to 1.")
        if wrong:
            raise ConfigError(" ".join(wrong))

    def refuse(self, work: Work, device: Device) -> None:
        """Refuse what does not fit the recipe or the device.

        Raises:
            ConfigError: with the reason.
        """
        if self.gpus * (self.accumulate or 1) > work.rows:
            micro = f" in {self.accumulate} micro-batches" if self.accumulate else ""
            raise ConfigError(
                f"{work.name} learns from {work.rows} rows a step, which leaves some of "
                f"{self.gpus} GPUs without one{micro}; give fewer."
            )
        if not work.free:
            self._refuse_fixed(work)
        if self.shard and self.gpus == 1:
            raise ConfigError("one GPU has nobody to share weights with; leave shard out.")
        if self.gpus > device.node and self.network is None and device.network is None:
            raise ConfigError(
                f"how fast {self.gpus} {device.name} exchange is not known beyond the "
                f"{device.node} of a node; give the network's bytes a second for each GPU."
            )

    def _refuse_fixed(self, work: Work) -> None:
        said = {
            "shard": self.shard,
            "checkpointing": self.checkpointing,
            "accumulate": (self.accumulate or 1) > 1,
        }
        if named := [name for name, wanted in said.items() if wanted]:
            raise ConfigError(
                f"{', '.join(named)}: the training of {work.name} has no such setting, only "
                "recipes of language models do; leave it out."
            )
