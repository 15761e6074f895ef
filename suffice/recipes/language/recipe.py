"""A recipe of a language model, and what a user changes in it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields, replace
from typing import Any

from suffice.errors import ConfigError, unknown
from suffice.models import CONFIGURATIONS, LMConfig, configuration
from suffice.models.configurations import Configured, layers
from suffice.recipes.recipe import SCALES, SMALL
from suffice.train.language import LMTraining

SIZES = ("d_model", "depth", "mlp_width")  # which a configuration fixes
NOT_SET = ("length", "vocabulary_size")  # of the model: the training and the tokenizer say them


@dataclass(frozen=True, kw_only=True)
class LMRecipe:
    """A corpus, a tokenizer, a model and a training.

    Args:
        name: of the recipe's function.
        title: one line.
        corpus: a name or path, see `suffice.text.corpus`.
        tokenizer: "characters", "bpe" (learned from the corpus), "gpt2", "llama", or the path of a
            saved tokenizer's folder or of a Llama model's file.
        configuration: of the model, see `suffice.models.configuration`.
        mechanism: of its attention; None = the configuration's own.
        rounded: the model's vocabulary is a multiple of this, at least the tokenizer's.
        options: of the configuration and of the mechanism; d_model, depth and mlp_width change the
            configuration's own sizes, vocabulary_size is how many byte pairs are learned.
        training: the settings; its length is the model's.
        scale: "paper" for the sizes that the recipe is named for, "small" for its twin of minutes.
    """

    name: str
    title: str
    corpus: str
    tokenizer: str
    configuration: str
    mechanism: str | None = None
    rounded: int = 1
    options: tuple[tuple[str, Any], ...] = ()
    training: LMTraining
    scale: str = "paper"

    def at(self, scale: str, *, training: dict[str, Any] | None = None, **fields: Any) -> LMRecipe:
        """Return this recipe, which is at the paper's scale, or its small twin.

        Args:
            scale: "paper" or "small".
            training: fields of the training that differ when small.
            **fields: fields of the recipe that differ when small, the title among them; none at
                all for a recipe without a small scale.

        Raises:
            ConfigError: for an unknown scale, or one that the recipe does not have.
        """
        if scale not in SCALES:
            raise unknown("scale", scale, SCALES)
        if scale == "paper":
            return self
        if not fields:
            raise ConfigError(
                f"recipe {self.name} trains in minutes and has one scale only; leave "
                f"scale={scale!r} out."
            )
        return replace(
            self,
            training=replace(self.training, **(training or {})),
            scale=scale,
            **{**fields, "title": f"{fields['title']}; {SMALL}"},
        )

    @property
    def vocabulary_size(self) -> int | None:
        """How many byte pairs a tokenizer learns; None where none is asked for."""
        return dict(self.options).get("vocabulary_size")

    def changed(self, settings: dict[str, Any]) -> LMRecipe:
        """Return the recipe with other settings, each of the training, the recipe or the model.

        Raises:
            ConfigError: if a value is not legal; what is unknown here must be the mechanism's.

        Example:
            >>> from suffice.recipes import shakespeare_char
            >>> shakespeare_char().changed({"steps": 10, "depth": 2, "warmup": 0}).training.steps
            10
        """
        own = {f.name for f in fields(LMTraining)}
        training = {name: value for name, value in settings.items() if name in own}
        if isinstance(training.get("betas"), list):
            training["betas"] = tuple(training["betas"])
        mine = {n: v for n, v in settings.items() if n in ("configuration", "mechanism")}
        others = {n: v for n, v in settings.items() if n not in own and n not in mine}
        return replace(
            self,
            training=replace(self.training, **training),
            options=tuple({**dict(self.options), **others}.items()),
            **mine,
        )

    def configured(self, vocabulary_size: int) -> Configured:
        """Return the model's sizes and its attention, for a tokenizer of so many tokens.

        Raises:
            ConfigError: for an unknown configuration, mechanism or option, or sizes that do not
                fit.
        """
        if self.configuration not in CONFIGURATIONS:
            raise unknown("configuration", self.configuration, CONFIGURATIONS)
        takes = inspect.signature(CONFIGURATIONS[self.configuration]).parameters
        options = {n: v for n, v in self.options if n not in NOT_SET}
        sizes = {name: options.pop(name) for name in SIZES if name in options}
        given = {
            **options,
            "length": self.training.length,
            "vocabulary_size": -(-vocabulary_size // self.rounded) * self.rounded,
        }
        config, specs = configuration(self.configuration, self.mechanism, **given)
        if not sizes:
            return config, specs
        heads = options.pop("num_heads", takes["num_heads"].default)
        mechanism = self.mechanism or takes["mechanism"].default
        options = {n: v for n, v in options.items() if n not in ("bias", "dropout")}
        config = _resized(config, sizes)
        position = specs[0].position
        return config, layers(mechanism, config, heads, position=position, **options)


def _resized(config: LMConfig, sizes: dict[str, Any]) -> LMConfig:
    """Return a configuration in other sizes; the MLPs keep their share of the width."""
    width = sizes.get("d_model")
    if isinstance(width, int) and "mlp_width" not in sizes:
        sizes = {**sizes, "mlp_width": max(config.mlp_width * width // config.d_model, 1)}
    return replace(config, **sizes)
