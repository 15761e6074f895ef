"""`suffice search`: which attention each layer of a trained model should have, within a budget."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from suffice.cli.again import again
from suffice.cli.searched import print_found
from suffice.cli.stop import INTERRUPTED, Stopped
from suffice.errors import ConfigError

if TYPE_CHECKING:
    from suffice.convert.search import Found, Texts
    from suffice.convert.sources import Source
    from suffice.train import Progress

TOKENS = 1 << 15
LONGEST = 512  # tokens of a row, where the model reads more
STAGES = ("timing", "reading", "fitting", "scoring", "judging", "comparing")


def search(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="Folder of suffice; folder with config.json and safetensors of transformers; or "
            "a .bin of llama2.c."
        ),
    ],
    budget: Annotated[
        str,
        typer.Option(
            help="Bounds, with commas between them: state<=25%, latency<=0.8x, parameters<=90%, "
            "loss<=1.05x (or absolute: 64kB, 2ms, 10M, 1.9), divergence<=0.01."
        ),
    ],
    calibration: Annotated[
        str | None,
        typer.Option(
            help="Text, a folder or a corpus' name: its training part is learnt from, its "
            "validation part chooses and judges; the corpus it was trained on by default."
        ),
    ] = None,
    minutes: Annotated[
        float, typer.Option(help="After so long what is scored is chosen from.")
    ] = 10.0,
    out: Annotated[
        Path, typer.Option(help="File of the plan; beside it a folder with all that was found.")
    ] = Path("plan.json"),
    length: Annotated[
        int | None,
        typer.Option(
            help="Tokens of a text behind which costs count; what the model reads by default, at "
            f"most {LONGEST}."
        ),
    ] = None,
    options: Annotated[
        str | None,
        typer.Option(
            help='What to choose from beside keeping a layer, such as "mqa; gqa:2,window:64+sinks";'
            " all that is legal by default."
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Of the text, to learn from.")] = TOKENS,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Of the source, where it has none beside it.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random mixes it is compared with.")] = 0,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the search of --out; the budget may be another."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all that was found as JSON.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Choose the attention of each layer within a budget, and measure what came of it.

    Every layer is fitted with every legal option and scored alone: how far the model's predictions
    then are from what they were. Steps are timed on this machine. An integer program chooses; its
    plan is converted and measured as a whole, on other text, beside one option for all layers and
    random mixes. `suffice convert CHECKPOINT --to plan.json` makes the model.
    """
    from suffice.convert.search import budget_of
    from suffice.convert.search import search as look
    from suffice.convert.sources import open_source
    from suffice.convert.target import steps_of
    from suffice.train import show

    budget_of(budget)
    words = None if options is None else [one.strip() for one in options.split(";")]
    for one in words or ():
        steps_of(one)
    _check(out, tokens, length)
    source = open_source(checkpoint, tokenizer=tokenizer)
    texts = _texts(source, calibration, tokens, length)
    try:
        with show(Console(stderr=True), cells=len(STAGES), quiet=quiet) as progress:
            found = look(
                source.model,
                budget,
                texts,
                minutes=minutes,
                words=words,
                work=folder_of(out),
                resume=resume,
                seed=seed,
                step=_steps(progress),
            )
    except KeyboardInterrupt as interrupt:
        kept = f"What was done is kept. Go on with:\n  {again(out)}"
        raise Stopped(f"\ninterrupted. {kept}", code=INTERRUPTED) from interrupt
    _write(out, found)
    if as_json:
        sys.stdout.write(json.dumps(found.to_json(), indent=1, allow_nan=False) + "\n")
        return
    command = ["suffice", "convert", str(checkpoint), "--to", str(out)]
    given = {"--calibration": calibration, "--tokenizer": tokenizer}
    for option, value in given.items():
        command += [] if value is None else [option, str(value)]
    print_found(found, out, folder_of(out), command)


def folder_of(out: Path) -> Path:
    """Return where the work behind a plan lies.

    Example:
        >>> folder_of(Path("runs/plan.json")).as_posix()
        'runs/plan.search'
    """
    return out.with_suffix(".search")


def _check(out: Path, tokens: int, length: int | None) -> None:
    if out.suffix != ".json":
        raise ConfigError(f"--out {out}: a plan is a file that ends in .json.")
    if tokens < 1:
        raise ConfigError(f"--tokens {tokens}: give at least 1.")
    if length is not None and length < 2:  # noqa: PLR2004
        raise ConfigError(f"--length {length}: give at least 2.")


def _texts(source: Source, named: str | None, tokens: int, length: int | None) -> Texts:
    """Return rows to learn from, to choose by and to judge by."""
    from suffice.convert.search import Texts
    from suffice.convert.search.text import rows_for
    from suffice.models import LM
    from suffice.text import corpus

    if not isinstance(source.model, LM):
        raise ConfigError(
            f"a {source.kind} model is no language model, and what search weighs is the state and "
            "the step of one; convert it by words of your own."
        )
    if source.tokenizer is None:
        raise ConfigError(
            f"this {source.kind} model has no tokenizer beside it, without which no text can be "
            "read; name it by --tokenizer."
        )
    text = named or source.facts.get("corpus")
    if not isinstance(text, str):
        raise ConfigError("the checkpoint names no corpus; name a text by --calibration.")
    most = source.model.config.length
    if length is not None and length > most:
        raise ConfigError(f"--length {length}: the model reads {most} tokens at most.")
    found = corpus(text)
    return Texts(
        **rows_for(found, source.tokenizer, length=length or min(most, LONGEST), tokens=tokens)
    )


def _steps(progress: Progress) -> Any:
    """Return what tells the progress of each part of the work."""
    doing: list[str] = []

    def step(what: str, done: int, total: int) -> None:
        if doing[-1:] != [what]:
            doing.append(what)
            if what in STAGES and doing.count(what) == 1:
                progress.cell(what)
        progress.step(done, total)

    return step


def _write(out: Path, found: Found) -> None:
    """Write the plan, all that is known of it, and the figure."""
    from suffice.convert import plan_to_json
    from suffice.convert.search.figure import draw
    from suffice.measure.machine import machine_facts, software_versions
    from suffice.measure.report.canvas import png
    from suffice.measure.storage import write_atomic

    told = found.to_json()
    facts = {key: told[key] for key in ("budget", "length", "quantities")}
    plan = plan_to_json(found.words, **facts)
    everything = {**told, "machine": {**machine_facts(), **software_versions()}}
    folder = folder_of(out)
    write_atomic(folder / "results.json", json.dumps(everything, indent=1, allow_nan=False) + "\n")
    write_atomic(folder / "figure.png", png(draw(found)))
    write_atomic(out, json.dumps(plan, indent=1, allow_nan=False) + "\n")
