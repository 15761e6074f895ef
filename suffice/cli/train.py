"""`suffice train`: train a language model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from suffice.cli import completed
from suffice.cli.again import again
from suffice.cli.defaults import DEVICE, RUNS
from suffice.cli.stop import telling
from suffice.errors import ConfigError, DataError

if TYPE_CHECKING:
    from suffice.cli.training import Trained
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
    from suffice.cli.training import Asked, claim, latest, new_folder, read_kept
    from suffice.measure.together import first, losing, shared
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
    from suffice.cli.training import Trained
    from suffice.measure.together import first, together

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
    from suffice.cli.sample import sample
    from suffice.models import folder as models
    from suffice.train import resolve_device

    lm, tokenizer, _ = models.load(folder, resolve_device(made.asked.device or DEVICE))
    each = max(made.amount.characters / made.amount.tokens, 0.1)
    try:
        return sample(lm, tokenizer, characters=SAMPLED, each=each)
    except ConfigError as error:
        return f"no sample of its text: {error}"
