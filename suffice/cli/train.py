"""`suffice train`: train a language model."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.console import Console

from suffice.cli import options as completed
from suffice.cli.compare_options import STAMP, folders_of, mark
from suffice.cli.options import DEVICE, RUNS, written
from suffice.cli.terminal import again, telling
from suffice.errors import CheckpointError, ConfigError, DataError
from suffice.files import replacing
from suffice.generate import Sample, generate
from suffice.models import LM
from suffice.models import folder as models
from suffice.recipes import LMRecipe, lm_recipe
from suffice.text import TokenFile, Tokenizer, choose_tokenizer, corpus, load_tokenizer
from suffice.train import show
from suffice.train.language import Amount, LMRun, Measured, amount, fit_lm
from suffice.train.settings import derive

if TYPE_CHECKING:
    from rich.console import Console

    from suffice.train import Processes
    from suffice.train.language import LMRun


RECIPE = "shakespeare_char"
SAMPLED = 200  # characters printed at the end


def train(
    recipe: Annotated[
        str | None,
        typer.Option(
            help="shakespeare_char, stdlib_bpe, nanogpt_124m or llama_1b_efficient; "
            f"{RECIPE} by default.",
            autocompletion=completed.language_recipes,
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            help="paper (the default), or small: a model of 15M parameters, minutes on two cores, "
            "marked as such wherever its figures are shown."
        ),
    ] = None,
    mechanism: Annotated[
        str | None,
        typer.Option(
            help="Of the attention; the recipe's by default.", autocompletion=completed.mechanisms
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Text, a folder, .jsonl or a corpus' name; the recipe's by default."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="characters, bpe, gpt2, llama or a path; the recipe's by default."),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Of training at most, looks at the loss not counted.")
    ] = None,
    shard: Annotated[
        bool | None,
        typer.Option(
            "--shard/--replicate",
            help="Cut the weights between torchrun's processes, or give each all of them, as by "
            "default.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Of the training or the model, such as steps=500; repeatable.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, rows and dropout; 0.")] = None,
    device: Annotated[str | None, typer.Option(help=f"cpu or cuda; {DEVICE} by default.")] = None,
    out: Annotated[
        Path | None, typer.Option(help=f"Folder of the run; a new one in {RUNS}/ by default.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run in --out, or with the latest one; what is not said is as it "
            "was.",
        ),
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write TensorBoard's events too.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Train a language model and leave it in a folder, with its tokenizer and its log.

    The best weights so far are in the folder at any time; text drawn from them is printed at the
    end. `suffice evaluate` measures the model, `suffice generate` writes with it.
    """
    from suffice.measure.processes import first, losing, shared
    from suffice.train import processes

    asked = Asked.given(
        recipe=recipe,
        scale=scale,
        mechanism=mechanism,
        data=data,
        tokenizer=tokenizer,
        minutes=minutes,
        settings=settings or [],
        shard=shard,
        seed=seed,
        device=device,
    )
    folder = latest(asked) if resume and out is None else out
    if resume:
        asked = asked.over(read_kept(folder))
    chosen = asked.recipe_chosen()
    with processes(asked.device or DEVICE) as group, losing(group):
        folder = Path(shared(group, str(folder or new_folder(chosen))))
        first(group, lambda: claim(folder, asked, resume=resume))
        with telling(again(folder), folder):
            console = Console(stderr=True)
            made = _prepared(group, asked, folder, None if quiet else console)
            run = made.train(console=console, resume=resume, quiet=quiet, tensorboard=tensorboard)
        if group.is_main:
            _report(made, run, folder)


def _prepared(group: Processes, asked: object, folder: Path, console: Console | None) -> Trained:
    """Return what is trained; the first process makes the files that the others read."""
    from suffice.measure.processes import first, together

    try:
        first(group, lambda: Trained.write(asked, folder, console))
    except DataError as error:
        raise DataError(
            f"{error} Every machine has the text of --recipe stdlib_bpe; --data PATH trains on "
            "your own."
        ) from error
    return together(group, lambda: Trained.open(asked, folder))


def _report(made: Trained, run: LMRun, folder: Path) -> None:
    from suffice.recipes import SMALL

    best = run.best
    bits = made.amount.bits(best.validation_loss)
    told = [] if made.recipe.scale == "paper" else [SMALL]
    spent = run.measured[-1].seconds
    told += [
        f"validation loss {best.validation_loss:.4f} after {best.step:,} steps, "
        f"{bits['bits_per_character']:.3f} bits per character, "
        f"{bits['bits_per_byte']:.3f} bits per byte",
        f"{run.measured[-1].tokens / max(spent, 1e-9):,.0f} tokens/s over "
        + (f"{spent:.1f} seconds" if spent < 60.0 else f"{spent / 60:.1f} minutes")  # noqa: PLR2004
        + (": the time was over before the last step" if run.out_of_time else ""),
        f"model: {folder}",
    ]
    Console().print("\n".join(told), markup=False, highlight=False, soft_wrap=True)
    sys.stdout.write(f"\n{_sampled(made, folder)}\n")


def _sampled(made: Trained, folder: Path) -> str:
    """Return text drawn from the best weights, or why there is none."""
    from suffice.models import folder as models
    from suffice.train import resolve_device

    lm, tokenizer, _ = models.load(folder, resolve_device(made.asked.device or DEVICE))
    each = max(made.amount.characters / made.amount.tokens, 0.1)
    try:
        return sample(lm, tokenizer, characters=SAMPLED, each=each)
    except ConfigError as error:
        return f"no sample of its text: {error}"


TRAINING_RECIPE = "shakespeare_char"
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
        one = lm_recipe(self.recipe or TRAINING_RECIPE, scale=self.scale or "paper")
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


TEMPERATURE = 0.8


def sample(lm: LM, tokenizer: Tokenizer, *, characters: int, each: float, seed: int = 0) -> str:
    """Return text that a model draws, the same for the same seed, behind the begin of a document.

    Where no token begins or ends documents, it goes on from a line's end. A text longer than the
    model's rows is written in pieces, each behind the second half of what a row holds.

    Args:
        lm: the model.
        tokenizer: of its tokens.
        characters: about so many.
        each: characters of a token, about.
        seed: of the draws.

    Raises:
        ConfigError: if the model cannot stream.
    """
    length = lm.config.length
    first = _start(tokenizer)
    ids, wanted = first, len(first) + math.ceil(characters / each)
    while len(ids) < wanted:
        before = ids[-max(length // 2, 1) :]
        room = min(length + 1 - len(before), wanted - len(ids))
        draws = Sample(temperature=TEMPERATURE, seed=seed + len(ids))
        found = generate(lm, [before], max_new_tokens=room, sampling=draws)
        ids = ids + found.row(0)[len(before) :]
    hidden, size = {tokenizer.begin, tokenizer.end}, tokenizer.vocabulary_size
    # a model may have more rows than its tokenizer has tokens, for speed
    told = [one for one in ids[len(first) :] if one not in hidden and one < size]
    return tokenizer.decode(told)


def _start(tokenizer: Tokenizer) -> list[int]:
    for one in (tokenizer.begin, tokenizer.end):
        if one is not None:
            return [one]
    try:
        return tokenizer.encode("\n")
    except DataError:
        return [0]  # an alphabet of one line; its first character is as good as another
