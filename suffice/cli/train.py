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
from suffice.utils.grammar import SMALL
from suffice.utils.records import decode

if TYPE_CHECKING:
    from suffice.models import LM
    from suffice.text import Tokenizer
    from suffice.train.language import Amount, LMRun
    from suffice.train.recipes import LMRecipe
    from suffice.train.recipes.lm_folder import LMFolder

SETTINGS = "run.json"
OPTIONS = {"mechanism": "--mechanism", "max_minutes": "--minutes", "shard": "--shard"}
SAMPLE_CHARACTERS = 200  # printed at the end
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
    recipe, device = choices.chosen_recipe(), choices.device or DEVICE
    from suffice.train import processes
    from suffice.train.distributed import first, losing, shared, together
    from suffice.train.recipes.lm_folder import LMFolder, run_folder
    from suffice.utils.progress import show

    name = f"{recipe.name}{options.scale_suffix(recipe.scale)}"
    with processes(device) as group, losing(group), ExitStack() as stack:
        folder = Path(shared(group, str(folder or options.new_run(name))))
        training = LMFolder(path=folder, recipe=recipe, seed=choices.seed or 0, device=device)
        run, console = run_folder(folder), Console(stderr=True)
        first(group, lambda: stack.enter_context(run.locked()))
        first(group, lambda: run.claim(asdict(choices), resume=resume))
        with resumable(folder):
            first(group, lambda: _write_tokens(training, None if quiet else console))
            together(group, lambda: training.amount)
            with show(console, quiet=quiet) as progress:
                progress.cell(Path(choices.data).name if choices.data else name)
                trained = training.train(progress=progress, resume=resume, tensorboard=tensorboard)
        if group.is_main:
            _report(training, trained, as_json=as_json)


def _write_tokens(training: LMFolder, console: Console | None) -> None:
    try:
        training.write_tokens(console)
    except DataError as error:
        raise DataError(
            f"{error} Every machine has the text of --recipe stdlib_bpe; --data PATH trains on "
            "your own."
        ) from error


def _report(training: LMFolder, run: LMRun, *, as_json: bool) -> None:
    best, last = run.best, run.measured[-1]
    bits = training.amount.bits(best.validation_loss)
    speed = last.tokens / max(last.seconds, 1e-9)
    lm, tokenizer = training.best()
    sample = sample_or_reason(lm, tokenizer, training.amount)
    if as_json:
        print_json(
            {
                "folder": str(training.path),
                "recipe": training.recipe.name,
                "scale": training.recipe.scale,
                **asdict(best),
                **bits,
                "tokens_per_second": speed,
                "out_of_time": run.out_of_time,
                "sample": sample,
            }
        )
        return
    if training.recipe.scale != "paper":
        print_text(SMALL)
    minutes = f"{last.seconds / MINUTE:.1f} minutes"
    duration = f"{last.seconds:.1f} seconds" if last.seconds < MINUTE else minutes
    print_text(
        f"validation loss {best.validation_loss:.4f} after {best.step:,} steps, "
        f"{bits['bits_per_character']:.3f} bits per character, "
        f"{bits['bits_per_byte']:.3f} bits per byte\n{speed:,.0f} tokens/s over {duration}"
        + ("; the time given was used up" if run.out_of_time else "")
        + f"\nmodel: {training.path}"
    )
    write_stdout(f"\n{sample}\n\n")
    folder = quote(str(training.path))
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


def sample_or_reason(lm: LM, tokenizer: Tokenizer, amount: Amount) -> str:
    """Return some text that a model writes, or why it cannot."""
    from suffice.generate.generate import sample_text

    tokens = math.ceil(SAMPLE_CHARACTERS * amount.tokens / max(amount.characters, 1))
    try:
        return sample_text(lm, tokenizer, tokens=min(tokens, 10 * SAMPLE_CHARACTERS))
    except ConfigError as error:
        return f"no sample of its text: {error}"


def read_options(folder: Path) -> TrainOptions:
    """Return the options that the run in a folder was last started with."""
    from suffice.train.recipes.lm_folder import run_folder

    run = run_folder(folder)
    return decode(TrainOptions, run.read(), where=str(run.settings_path))
