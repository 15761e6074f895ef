"""`suffice train`: train a language model."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from typer import Option

from suffice.cli import options
from suffice.cli.options import (
    DEVICE,
    RECIPE_OF_LM,
    RUNS,
    JsonFlag,
    Quiet,
    options_from_fields,
    parse_settings,
)
from suffice.cli.terminal import print_json, print_next, print_text, resumable, write_stdout
from suffice.errors import ConfigError, DataError
from suffice.utils.files import RunFolder
from suffice.utils.records import decode

if TYPE_CHECKING:
    from suffice.models import LM
    from suffice.text import TokenFile, Tokenizer
    from suffice.train import Processes
    from suffice.train.language import Amount, LMRun, Measured
    from suffice.train.recipes import LMRecipe

SETTINGS = "run.json"
CHECKPOINT, LOG = "checkpoint.safetensors", "log.jsonl"
TRAIN, VALIDATION = "tokens/train.bin", "tokens/validation.bin"
OPTIONS = {"mechanism": "--mechanism", "max_minutes": "--minutes", "shard": "--shard"}
SAMPLE_CHARACTERS = 200  # printed at the end
TEMPERATURE = 0.8  # of that text
MINUTE = 60.0  # seconds


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of a training; None where one is not given."""

    recipe: Annotated[
        str | None,
        Option(
            help="shakespeare_char, stdlib_bpe, nanogpt_124m or llama_1b_efficient; "
            f"{RECIPE_OF_LM} by default.",
            **options.known("recipe", "suffice.train.recipes", "LM_RECIPES"),
        ),
    ] = None
    scale: Annotated[
        str | None,
        Option(
            help="paper (default), or small: a model of 15M parameters in minutes on two cores; "
            "its results are marked as small everywhere."
        ),
    ] = None
    mechanism: Annotated[
        str | None,
        Option(help="Attention; the recipe's by default.", **options.A_MECHANISM),
    ] = None
    data: Annotated[
        str | None,
        Option(help="Text file, folder, .jsonl or name of a corpus; the recipe's by default."),
    ] = None
    tokenizer: Annotated[
        str | None, Option(help="characters, bpe, gpt2, llama or a path; the recipe's by default.")
    ] = None
    minutes: Annotated[
        float | None, Option(help="Training time limit in minutes, excluding evaluation.")
    ] = None
    shard: Annotated[
        bool | None,
        Option(
            "--shard/--replicate",
            help="Split the weights between torchrun's processes, or copy them to each (default).",
        ),
    ] = None
    seed: Annotated[
        int | None, Option(help="Seed of weights, batches and dropout; 0 by default.")
    ] = None
    device: Annotated[str | None, Option(help=f"cpu or cuda; {DEVICE} by default.")] = None
    settings: dict[str, Any] = field(default_factory=dict)

    def over(self, earlier: TrainOptions) -> TrainOptions:
        """Return the options of an earlier start, replaced by those given now."""
        overrides = {name: value for name, value in vars(self).items() if value is not None}
        return replace(earlier, **overrides | {"settings": {**earlier.settings, **self.settings}})

    def chosen_recipe(self) -> LMRecipe:
        """Return the recipe with these options."""
        from suffice.train.recipes import lm_recipe

        recipe = lm_recipe(self.recipe or RECIPE_OF_LM, scale=self.scale or "paper")
        if self.tokenizer not in (None, recipe.tokenizer):
            tokenizer_options = {n: v for n, v in recipe.options if n != "vocabulary_size"}
            recipe = replace(
                recipe, tokenizer=self.tokenizer, options=tuple(tokenizer_options.items())
            )
        changes = {"max_minutes": self.minutes, "mechanism": self.mechanism, "shard": self.shard}
        changes = {name: value for name, value in changes.items() if value is not None}
        return replace(recipe, corpus=self.data or recipe.corpus).changed(self.settings | changes)


@options_from_fields
def train(
    choices: TrainOptions,
    settings: Annotated[
        list[str] | None,
        options.set_option("Setting of the training or the model, such as steps=500; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, Option(help=f"Folder of the run; a new one in {RUNS}/ by default.")
    ] = None,
    resume: Annotated[
        bool,
        Option(
            "--resume",
            help="Resume the run in --out, or the latest one. Options not given stay as they were.",
        ),
    ] = False,
    tensorboard: Annotated[
        bool, Option("--tensorboard", help="Also write the log's numbers for TensorBoard.")
    ] = False,
    as_json: JsonFlag = False,
    quiet: Quiet = False,
) -> None:
    """Train a language model into a folder, with its tokenizer and its log.

    The folder always holds the best weights so far; a text sampled from them is printed at the end.
    `suffice evaluate` measures the model, `suffice generate` writes with it.
    """
    choices = replace(choices, settings=parse_settings(settings or [], OPTIONS))
    folder = out
    if resume:
        folder = out or options.latest_run(choices.recipe, choices.scale, SETTINGS)
        choices = choices.over(read_options(folder))
    chosen = choices.chosen_recipe()
    from suffice.train import processes
    from suffice.train.distributed import first, losing, shared

    name = f"{chosen.name}{options.scale_suffix(chosen.scale)}"
    with processes(choices.device or DEVICE) as group, losing(group), ExitStack() as stack:
        folder = Path(shared(group, str(folder or options.new_run(name))))
        run = run_folder(folder)
        first(group, lambda: stack.enter_context(run.locked()))
        first(group, lambda: run.claim(asdict(choices), resume=resume))
        with resumable(folder):
            console = Console(stderr=True)
            training = _prepare(group, choices, folder, None if quiet else console)
            trained = training.train(
                console=console, resume=resume, quiet=quiet, tensorboard=tensorboard
            )
        if group.is_main:
            _report(training, trained, as_json=as_json)


def _prepare(
    group: Processes, choices: TrainOptions, folder: Path, console: Console | None
) -> TrainingFiles:
    from suffice.train.distributed import first, together

    try:
        first(group, lambda: TrainingFiles.write(choices, folder, console))
    except DataError as error:
        raise DataError(
            f"{error} Every machine has the text of --recipe stdlib_bpe; --data PATH trains on "
            "your own."
        ) from error
    return together(group, lambda: TrainingFiles.open(choices, folder))


def _report(training: TrainingFiles, run: LMRun, *, as_json: bool) -> None:
    from suffice.train.recipes import SMALL

    best, last = run.best, run.measured[-1]
    bits = training.amount.bits(best.validation_loss)
    if as_json:
        print_json(
            {
                "folder": str(training.folder),
                "recipe": training.recipe.name,
                "scale": training.recipe.scale,
                **asdict(best),
                **bits,
                "tokens_per_second": last.tokens / max(last.seconds, 1e-9),
                "out_of_time": run.out_of_time,
                "sample": _sample_or_reason(training, *training.best()),
            }
        )
        return
    duration = f"{last.seconds:.1f} seconds"
    if last.seconds >= MINUTE:
        duration = f"{last.seconds / MINUTE:.1f} minutes"
    if training.recipe.scale != "paper":
        print_text(SMALL)
    print_text(
        f"validation loss {best.validation_loss:.4f} after {best.step:,} steps, "
        f"{bits['bits_per_character']:.3f} bits per character, "
        f"{bits['bits_per_byte']:.3f} bits per byte"
    )
    print_text(
        f"{last.tokens / max(last.seconds, 1e-9):,.0f} tokens/s over {duration}"
        + ("; the time given was used up" if run.out_of_time else "")
    )
    print_text(f"model: {training.folder}")
    folder = quote(str(training.folder))
    lm, tokenizer = training.best()
    write_stdout(f"\n{_sample_or_reason(training, lm, tokenizer)}\n\n")
    cheaper = [f"suffice convert {folder} --to {target}" for target in _conversions(lm)]
    print_next(f"suffice generate {folder}", f"suffice quantise {folder}", *cheaper)


def _conversions(lm: LM) -> list[str]:
    from suffice.convert import plan_of
    from suffice.convert.exact import changes

    target = f"gqa:{max(1, lm.specs[0].kv_heads // 2)}"
    try:
        planned = changes(lm, plan_of(lm, target))
    except ConfigError:
        return []
    return [] if all(change.unchanged for change in planned.values()) else [target]


def _sample_or_reason(training: TrainingFiles, lm: LM, tokenizer: Tokenizer) -> str:
    characters_per_token = max(training.amount.characters / training.amount.tokens, 0.1)
    tokens = math.ceil(SAMPLE_CHARACTERS / characters_per_token)
    try:
        return sample_text(lm, tokenizer, tokens=tokens)
    except ConfigError as error:
        return f"no sample of its text: {error}"


def run_folder(folder: Path) -> RunFolder:
    """Return the folder of a training and its settings."""
    from suffice.models.folder import CONFIG, WEIGHTS

    return RunFolder(folder, SETTINGS, "training", results=(CONFIG, WEIGHTS, CHECKPOINT))


def read_options(folder: Path) -> TrainOptions:
    """Return the options that the run in a folder was last started with."""
    run = run_folder(folder)
    return decode(TrainOptions, run.read(), where=str(run.settings_path))


@dataclass(frozen=True, kw_only=True)
class TrainingFiles:
    """A training whose tokenizer and tokens are on disk."""

    options: TrainOptions
    folder: Path
    recipe: LMRecipe
    tokenizer: Tokenizer
    train_tokens: TokenFile
    validation_tokens: TokenFile
    amount: Amount

    @staticmethod
    def write(choices: TrainOptions, folder: Path, console: Console | None) -> None:
        """Write the tokenizer and the tokens, unless they exist; refuse a wrong model early."""
        from suffice.text import TokenFile, choose_tokenizer, corpus, load_tokenizer
        from suffice.text.token_file import header_at

        recipe = choices.chosen_recipe()
        if all(header_at(folder / name).exists() for name in (TRAIN, VALIDATION)):
            recipe.configured(load_tokenizer(folder).vocabulary_size)
            return
        text = corpus(recipe.corpus, console=console)
        tokenizer = choose_tokenizer(
            recipe.tokenizer, text, vocabulary_size=recipe.vocabulary_size, console=console
        )
        recipe.configured(tokenizer.vocabulary_size)
        tokenizer.save(folder)
        TokenFile.write(folder / VALIDATION, text.validation, tokenizer, console)
        TokenFile.write(folder / TRAIN, text.train, tokenizer, console)

    @classmethod
    def open(cls, choices: TrainOptions, folder: Path) -> TrainingFiles:
        """Open what `write` wrote."""
        from suffice.text import TokenFile, load_tokenizer
        from suffice.train.language import amount

        tokenizer = load_tokenizer(folder)
        validation = TokenFile(folder / VALIDATION, tokenizer=tokenizer)
        return cls(
            options=choices,
            folder=folder,
            recipe=choices.chosen_recipe(),
            tokenizer=tokenizer,
            train_tokens=TokenFile(folder / TRAIN, tokenizer=tokenizer),
            validation_tokens=validation,
            amount=amount(validation, tokenizer),
        )

    def best(self) -> tuple[LM, Tokenizer]:
        """Return the best weights so far and their tokenizer, as the folder holds them."""
        from suffice.models import folder as models
        from suffice.train import resolve_device

        lm, tokenizer, _ = models.load(self.folder, resolve_device(self.options.device or DEVICE))
        return lm, tokenizer

    def train(self, *, console: Console, resume: bool, quiet: bool, tensorboard: bool) -> LMRun:
        """Train, from the checkpoint if there is one and `resume` is set."""
        import torch

        from suffice.train.language import fit_lm
        from suffice.train.settings import derive
        from suffice.utils.progress import show

        seed, checkpoint = self.options.seed or 0, self.folder / CHECKPOINT
        torch.manual_seed(derive("weights", seed))
        config, specs = self.recipe.configured(self.tokenizer.vocabulary_size)
        lm = config.build(specs)
        with show(console, quiet=quiet) as progress:
            recipe = f"{self.recipe.name}{options.scale_suffix(self.recipe.scale)}"
            progress.cell(Path(self.options.data).name if self.options.data else recipe)
            return fit_lm(
                lm,
                self.train_tokens,
                self.validation_tokens,
                self.recipe.training,
                seed=seed,
                device=self.options.device or DEVICE,
                checkpoint=checkpoint,
                resume=resume and checkpoint.exists(),
                progress=progress,
                log=self.folder / LOG,
                tensorboard=self.folder / "tensorboard" if tensorboard else None,
                amount=self.amount,
                keep=lambda measured: self._save(lm, measured),
            )

    def _save(self, lm: LM, measured: Measured) -> None:
        from suffice.models import folder as models

        models.save(
            self.folder,
            lm,
            self.tokenizer,
            recipe=self.recipe.name,
            scale=self.recipe.scale,
            corpus=self.recipe.corpus,
            training=asdict(self.recipe.training),
            seed=self.options.seed or 0,
            measured={**asdict(measured), **self.amount.bits(measured.validation_loss)},
        )


def sample_text(lm: LM, tokenizer: Tokenizer, *, tokens: int, seed: int = 0) -> str:
    """Return text that a model writes at the beginning of a document."""
    from suffice.generate import Sample, slide
    from suffice.text.tokenizer import prompt_ids

    sampling = Sample(temperature=TEMPERATURE, seed=seed)
    ids = slide(lm, prompt_ids(tokenizer, ""), max_new_tokens=tokens, sampling=sampling)
    hidden, size = {tokenizer.begin, tokenizer.end}, tokenizer.vocabulary_size
    # a model may have more rows than its tokenizer has tokens, for speed
    return tokenizer.decode([id_ for id_ in ids if id_ not in hidden and id_ < size])
