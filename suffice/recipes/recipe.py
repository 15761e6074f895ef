"""A recipe: everything but the mechanism that an experiment fixes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from suffice.models import Classifier, ClassifierConfig, ViT, ViTConfig
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
        model: the sizes.
        training: the hyper-parameters.
        num_heads: heads of a comparison that does not say otherwise.
    """

    name: str
    title: str
    task: str
    task_options: tuple[tuple[str, Any], ...] = ()
    model: ViTConfig | ClassifierConfig
    training: Training
    num_heads: int

    def specs(self, mechanism: str, num_heads: int) -> list[AttentionSpec]:
        """Return the attention of each block of one cell, made for the model's length.

        Raises:
            ConfigError: for an unknown mechanism, or heads that do not fit.
        """
        sized = mechanism in PRESETS and takes_length(mechanism)
        options = {"length": self.model.length} if sized else {}
        model = self.model
        return schedule(mechanism, model.d_model, num_heads, depth=model.depth, **options)

    def spec(self, mechanism: str, num_heads: int) -> AttentionSpec:
        """Return the attention of the first block of one cell.

        Raises:
            ConfigError: for an unknown mechanism, or heads that do not fit.
        """
        return self.specs(mechanism, num_heads)[0]

    def build(self, mechanism: str, num_heads: int) -> ViT | Classifier:
        """Return a fresh model of one cell, drawn from torch's present random state."""
        return self.model.build(self.specs(mechanism, num_heads))
