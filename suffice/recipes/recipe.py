"""A recipe: everything but the mechanism that an experiment fixes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from suffice.errors import ConfigError
from suffice.models import LM, Classifier, ClassifierConfig, LMConfig, ViT, ViTConfig
from suffice.presets import PRESETS, schedule, takes_length
from suffice.spec import AttentionSpec
from suffice.train.settings import Training


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A task, a model's sizes and a training; the mechanism is what a comparison varies.

    Args:
        name: of the recipe's function.
        title: one line for reports.
        task: name of the data set, see `suffice.data.TASKS`.
        task_options: keyword arguments of its loader.
        model: the sizes; a language model makes every mechanism causal.
        training: the hyper-parameters.
        num_heads: heads of a comparison that does not say otherwise.
        scale: "paper" for the paper's sizes, "small" for minutes on two cores.
    """

    name: str
    title: str
    task: str
    task_options: tuple[tuple[str, Any], ...] = ()
    model: ViTConfig | ClassifierConfig | LMConfig
    training: Training
    num_heads: int
    scale: str = "paper"

    def specs(self, mechanism: str, num_heads: int) -> list[AttentionSpec]:
        """Return the attention of each block of one cell, made for the model's length.

        Raises:
            ConfigError: for an unknown mechanism, one that cannot be causal where it must, or heads
                that do not fit.
        """
        sized = mechanism in PRESETS and takes_length(mechanism)
        options = {"length": self.model.length} if sized else {}
        model = self.model
        specs = schedule(mechanism, model.d_model, num_heads, depth=model.depth, **options)
        if not isinstance(model, LMConfig):
            return specs
        try:
            return schedule(
                mechanism, model.d_model, num_heads, depth=model.depth, causal=True, **options
            )
        except ConfigError as error:
            raise ConfigError(
                f"{mechanism} cannot be causal, which the language model of recipe {self.name} "
                f"needs; leave it out, or compare it on another task. {error}"
            ) from error

    def spec(self, mechanism: str, num_heads: int) -> AttentionSpec:
        """Return the attention of the first block of one cell.

        Raises:
            ConfigError: for an unknown mechanism, or heads that do not fit.
        """
        return self.specs(mechanism, num_heads)[0]

    def build(self, mechanism: str, num_heads: int) -> ViT | Classifier | LM:
        """Return a fresh model of one cell, drawn from torch's present random state."""
        return self.model.build(self.specs(mechanism, num_heads))
