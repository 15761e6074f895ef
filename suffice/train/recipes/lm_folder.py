"""The folder of a language model's training by a recipe: tokenizer, tokens, weights and log."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from suffice.models import LM
from suffice.models import folder as models
from suffice.text import TokenFile, Tokenizer, choose_tokenizer, corpus, load_tokenizer
from suffice.text.token_file import header_at
from suffice.train.distributed import resolve_device
from suffice.train.language import Amount, LMRun, Measured, amount, fit_lm
from suffice.train.recipes.language import LMRecipe
from suffice.train.settings import derive
from suffice.utils.files import RunFolder
from suffice.utils.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console

SETTINGS, CHECKPOINT, LOG = "run.json", "checkpoint.safetensors", "log.jsonl"
TRAIN, VALIDATION = "tokens/train.bin", "tokens/validation.bin"


def run_folder(path: Path) -> RunFolder:
    """Return the folder of a training and its settings."""
    return RunFolder(
        path, SETTINGS, "training", results=(models.CONFIG, models.WEIGHTS, CHECKPOINT)
    )


@dataclass(frozen=True, kw_only=True)
class LMFolder:
    """A training of a language model in a folder, which always holds the best weights so far."""

    path: Path
    recipe: LMRecipe
    seed: int = 0
    device: str = "cpu"

    def write_tokens(self, console: Console | None = None) -> None:
        """Write the tokenizer and the tokens, unless they exist; refuse a wrong model early."""
        recipe = self.recipe
        if all(header_at(self.path / name).exists() for name in (TRAIN, VALIDATION)):
            recipe.configured(self.tokenizer.vocabulary_size)
            return
        text = corpus(recipe.corpus, console=console)
        tokenizer = choose_tokenizer(
            recipe.tokenizer, text, vocabulary_size=recipe.vocabulary_size, console=console
        )
        recipe.configured(tokenizer.vocabulary_size)
        tokenizer.save(self.path)
        TokenFile.write(self.path / VALIDATION, text.validation, tokenizer, console)
        TokenFile.write(self.path / TRAIN, text.train, tokenizer, console)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer in the folder."""
        return load_tokenizer(self.path)

    @cached_property
    def tokens(self) -> tuple[TokenFile, TokenFile]:
        """The tokens to train on, and those to choose weights by."""
        train, validation = (
            TokenFile(self.path / name, tokenizer=self.tokenizer) for name in (TRAIN, VALIDATION)
        )
        return train, validation

    @cached_property
    def amount(self) -> Amount:
        """Tokens, characters and bytes of the validation text."""
        return amount(self.tokens[1], self.tokenizer)

    def best(self) -> tuple[LM, Tokenizer]:
        """Return the best weights so far and their tokenizer, as the folder holds them."""
        lm, tokenizer, _ = models.load(self.path, resolve_device(self.device))
        return lm, tokenizer

    def train(self, *, progress: Progress, resume: bool, tensorboard: bool) -> LMRun:
        """Train, from the checkpoint if there is one and `resume` is set."""
        torch.manual_seed(derive("weights", self.seed))
        config, specs = self.recipe.configured(self.tokenizer.vocabulary_size)
        lm = config.build(specs)
        checkpoint = self.path / CHECKPOINT
        return fit_lm(
            lm,
            *self.tokens,
            self.recipe.training,
            seed=self.seed,
            device=self.device,
            checkpoint=checkpoint,
            resume=resume and checkpoint.exists(),
            progress=progress,
            log=self.path / LOG,
            tensorboard=self.path / "tensorboard" if tensorboard else None,
            amount=self.amount,
            keep=lambda measured: self._save(lm, measured),
        )

    def _save(self, lm: LM, measured: Measured) -> None:
        models.save(
            self.path,
            lm,
            self.tokenizer,
            recipe=self.recipe.name,
            scale=self.recipe.scale,
            corpus=self.recipe.corpus,
            training=asdict(self.recipe.training),
            seed=self.seed,
            measured={**asdict(measured), **self.amount.bits(measured.validation_loss)},
        )
