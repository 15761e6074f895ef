"""A recipe: everything but the mechanism that an experiment fixes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from suffice.errors import ConfigError, check_known
from suffice.models import LM, Classifier, Translator, ViT, ViTConfig
from suffice.models.composition import STANDARD, Composition
from suffice.models.kinds import Sizes, build_model
from suffice.models.pretrained import changed_specs, load_encoder
from suffice.spec import AttentionSpec
from suffice.train.settings import Training
from suffice.utils.grammar import SCALES, SMALL

R = TypeVar("R", bound="Scaled")


class Scaled:
    """A recipe that may have a small twin."""

    def at(self: R, scale: str, **fields: Any) -> R:
        """Return this recipe, which is at the paper's scale, or its small twin."""
        check_known("scale", scale, SCALES)
        if scale == "paper":
            return self
        if not fields:
            raise ConfigError(f"recipe {self.name} has one scale only; leave scale={scale!r} out.")
        changed = {
            name: replace(getattr(self, name), **value) if isinstance(value, dict) else value
            for name, value in fields.items()
        }
        changed["title"] += f"; {SMALL}"
        return replace(self, **changed, scale=scale)


@dataclass(frozen=True, kw_only=True)
class Recipe(Scaled):
    """A task, a model's sizes and a training; the mechanism is what a comparison varies."""

    name: str  # name of the recipe's function
    title: str  # title of one line, for reports
    task: str  # name of the data set, see `suffice.data.TASKS`
    task_options: tuple[tuple[str, Any], ...] = ()  # keyword arguments of its loader
    model: Sizes  # the sizes; a language model makes every mechanism causal
    training: Training  # the hyper-parameters
    num_heads: int  # heads of a comparison that does not say otherwise
    scale: str = "paper"  # "paper" for the paper's sizes, "small" for minutes on two cores
    # the sizes of mechanisms that have their own, by name; of all others, `model`
    models: tuple[tuple[str, ViTConfig], ...] = ()

    @property
    def usual_metric(self) -> str:
        """The metric of a verdict that does not say otherwise."""
        return "perplexity" if self.task == "text" else "accuracy"

    @property
    def start(self) -> Path | None:
        """The folder of the encoder whose weights every model starts from; None draws them."""
        options = dict(self.task_options)
        return Path(options["words"]) if options.get("reads") == "start" else None

    def model_of(self, mechanism: str) -> Sizes:
        """Return the sizes of the model that has this mechanism."""
        return dict(self.models).get(mechanism, self.model)

    def specs(self, mechanism: str, num_heads: int) -> list[AttentionSpec]:
        """Return the attention of each layer of one cell, made for the model's length."""
        sizes = self.model_of(mechanism)
        specs = specs_of(sizes, mechanism, num_heads, recipe=self.name)
        if self.start is None:
            return specs
        standard = specs_of(sizes, STANDARD, num_heads, recipe=self.name)
        return changed_specs(self.start, sizes, specs, standard)

    def spec(self, mechanism: str, num_heads: int) -> AttentionSpec:
        """Return the attention of the first block of one cell."""
        return self.specs(mechanism, num_heads)[0]

    def build(self, mechanism: str, num_heads: int) -> ViT | Classifier | LM | Translator:
        """Return a fresh model of one cell, drawn from torch's present random state."""
        model = build_model(self.model_of(mechanism), self.specs(mechanism, num_heads))
        if self.start is not None:
            load_encoder(model, self.start)
        return model


def specs_of(model: Sizes, mechanism: str, num_heads: int, *, recipe: str) -> list[AttentionSpec]:
    """Return the attention of each layer, made for the model's length.

    A language model's is causal. A translator's are those of its encoder, those of its decoder,
    which are causal, and those from the decoder to the source.
    """
    composition = Composition.parse(mechanism)
    if composition.of_use:
        used = ", ".join(f"{name}:{number}" for name, number in composition.of_use.items())
        raise ConfigError(
            f"{used} in {mechanism}: a choice for a trained model, and recipe {recipe} trains one; "
            "leave it out."
        )
    try:
        return composition.specs(model, num_heads)
    except ConfigError as error:
        raise ConfigError(f"{mechanism} in recipe {recipe}: {error}") from error
