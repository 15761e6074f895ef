"""From the words of `suffice train` to a run in a folder, begun or resumed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from suffice.cli.asked import STAMP, folders_of, mark
from suffice.cli.defaults import DEVICE, RUNS
from suffice.cli.options import written
from suffice.errors import CheckpointError, ConfigError
from suffice.files import replacing
from suffice.models import LM
from suffice.models import folder as models
from suffice.recipes import LMRecipe, lm_recipe
from suffice.text import TokenFile, Tokenizer, choose_tokenizer, corpus, load_tokenizer
from suffice.train import show
from suffice.train.language import Amount, LMRun, Measured, amount, fit_lm
from suffice.train.seeds import derive

if TYPE_CHECKING:
    from rich.console import Console

RECIPE = "shakespeare_char"
FILE = "run.json"
ADDED: dict[str, Any] = {"scale": None}  # which the files of earlier runs do not have
CHECKPOINT, LOG, BOARD = "checkpoint.safetensors", "log.jsonl", "tensorboard"
TRAIN, VALIDATION = "tokens/train.bin", "tokens/validation.bin"
# have an option of their own
OWN = {"mechanism": "--mechanism", "max_minutes": "--minutes", "shard": "--shard"}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a command line says about a training; None where it says nothing.

    Args:
        recipe: name of a recipe.
        scale: "paper" or "small".
        mechanism: of the attention.
        data: name or path of a corpus.
        tokenizer: name or path.
        minutes: of training.
        settings: of the training and the model, by name.
        seed: of everything that is drawn.
        device: "cpu" or "cuda".
    """

    recipe: str | None = None
    scale: str | None = None
    mechanism: str | None = None
    data: str | None = None
    tokenizer: str | None = None
    minutes: float | None = None
    settings: dict[str, Any]
    seed: int | None = None
    device: str | None = None

    @classmethod
    def given(cls, *, settings: list[str], shard: bool | None = None, **words: Any) -> Asked:
        """Read the words of --set, and --shard among them.

        Raises:
            ConfigError: if they are not NAME=VALUE.
        """
        found = written(settings, OWN)
        return cls(settings=found if shard is None else {**found, "shard": shard}, **words)

    def over(self, kept: Asked) -> Asked:
        """Return what was asked before, with what is said now in its place."""
        said = {n: v for n, v in vars(self).items() if v is not None and n != "settings"}
        return replace(kept, **said, settings={**kept.settings, **self.settings})

    def recipe_chosen(self) -> LMRecipe:
        """Return the recipe with all that was asked for.

        Raises:
            ConfigError: if something is unknown or not legal.
        """
        one = lm_recipe(self.recipe or RECIPE, scale=self.scale or "paper")
        if self.tokenizer is not None and self.tokenizer != one.tokenizer:
            options = {n: v for n, v in one.options if n != "vocabulary_size"}
            one = replace(one, tokenizer=self.tokenizer, options=tuple(options.items()))
        changes = {**self.settings}
        if self.minutes is not None:
            changes["max_minutes"] = self.minutes
        if self.mechanism is not None:
            changes["mechanism"] = self.mechanism
        return replace(one, corpus=self.data or one.corpus).changed(changes)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A run whose files are there.

    Args:
        asked: for what.
        folder: of the run.
        recipe: with all that was asked for.
        tokenizer: of its tokens.
        train: tokens to learn from.
        validation: tokens to choose by.
        amount: of the validation text.
    """

    asked: Asked
    folder: Path
    recipe: LMRecipe
    tokenizer: Tokenizer
    train_file: TokenFile
    validation: TokenFile
    amount: Amount

    @staticmethod
    def write(asked: Asked, folder: Path, console: Console | None) -> None:
        """Write the tokenizer and the tokens, unless they are there; refuse a wrong model early.

        Raises:
            ConfigError, DataError: if something does not fit or is absent.
        """
        one = asked.recipe_chosen()
        if all((folder / name).exists() for name in (TRAIN, VALIDATION)):
            one.configured(load_tokenizer(folder).vocabulary_size)
            return
        text = corpus(one.corpus, console=console)
        size = one.vocabulary_size
        tokenizer = choose_tokenizer(one.tokenizer, text, vocabulary_size=size, console=console)
        one.configured(tokenizer.vocabulary_size)
        tokenizer.save(folder)
        TokenFile.write(folder / VALIDATION, text.validation, tokenizer, console)
        TokenFile.write(folder / TRAIN, text.train, tokenizer, console)

    @classmethod
    def open(cls, asked: Asked, folder: Path) -> Trained:
        """Open what `write` wrote."""
        tokenizer = load_tokenizer(folder)
        validation = TokenFile(folder / VALIDATION, tokenizer=tokenizer)
        return cls(
            asked=asked,
            folder=folder,
            recipe=asked.recipe_chosen(),
            tokenizer=tokenizer,
            train_file=TokenFile(folder / TRAIN, tokenizer=tokenizer),
            validation=validation,
            amount=amount(validation, tokenizer),
        )

    def train(self, *, console: Console, resume: bool, quiet: bool, tensorboard: bool) -> LMRun:
        """Train, from the checkpoint if there is one and it is asked for.

        Raises:
            Interrupted: on Ctrl-C.
        """
        seed, place = self.asked.seed or 0, self.folder / CHECKPOINT
        torch.manual_seed(derive("weights", seed))
        config, specs = self.recipe.configured(self.tokenizer.vocabulary_size)
        lm = config.build(specs)
        with show(console, quiet=quiet) as progress:
            progress.cell(f"{self.recipe.name}{mark(self.recipe.scale)}")
            return fit_lm(
                lm,
                self.train_file,
                self.validation,
                self.recipe.training,
                seed=seed,
                device=self.asked.device or DEVICE,
                checkpoint=place,
                resume=resume and place.exists(),
                progress=progress,
                log=self.folder / LOG,
                tensorboard=self.folder / BOARD if tensorboard else None,
                amount=self.amount,
                keep=lambda measured: self._keep(lm, measured),
            )

    def _keep(self, lm: LM, measured: Measured) -> None:
        models.save(
            self.folder,
            lm,
            self.tokenizer,
            recipe=self.recipe.name,
            scale=self.recipe.scale,
            corpus=self.recipe.corpus,
            training=asdict(self.recipe.training),
            seed=self.asked.seed or 0,
            measured={**asdict(measured), **self.amount.bits(measured.validation_loss)},
        )


def new_folder(chosen: LMRecipe) -> Path:
    """Return where a new run goes: runs/RECIPE-TIME, or runs/RECIPE-small-TIME."""
    return RUNS / f"{chosen.name}{mark(chosen.scale)}-{datetime.now():{STAMP}}"


def latest(asked: Asked) -> Path:
    """Return the folder of the latest run under runs/, of the recipe asked for if any.

    Raises:
        ConfigError: if there is none.
    """
    folders = folders_of(asked.recipe, asked.scale, FILE)
    if not folders:
        of = f" of {asked.recipe}" if asked.recipe else ""
        raise ConfigError(
            f"there is no training{of} under {RUNS}/ to resume; name its folder with --out, or "
            "start one without --resume."
        )
    return folders[-1]


def read_kept(folder: Path) -> Asked:
    """Return what was asked of the run in a folder.

    Raises:
        CheckpointError: if there is none, or its file is damaged.
    """
    path = folder / FILE
    try:
        data = json.loads(path.read_text("utf-8"))
        data = {**ADDED, **data} if isinstance(data, dict) else {}
        if data.keys() == {f.name for f in fields(Asked)}:
            return Asked(**data)
    except OSError as error:
        raise CheckpointError(
            f"there is no training in {folder} to resume ({error.strerror}); start it without "
            "--resume."
        ) from error
    except ValueError:
        pass
    raise CheckpointError(f"{path} is damaged; start the training anew in another folder.")


def claim(folder: Path, asked: Asked, *, resume: bool) -> None:
    """Make the folder and write down what was asked; one of another run is left alone.

    Raises:
        CheckpointError: if the folder holds a run that is not resumed, or cannot be written.
    """
    path = folder / FILE
    if path.exists() and not resume:
        raise CheckpointError(
            f"{folder} holds a training already; go on with it by --resume, or give another --out."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(vars(asked), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path} ({error.strerror or error}); give a folder that can be written."
        ) from error
