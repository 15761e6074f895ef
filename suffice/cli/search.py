"""`suffice search`: which attention each layer of a trained model should have, within a budget."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from suffice.cli.terminal import INTERRUPTED, Stopped, again
from suffice.errors import ConfigError

if TYPE_CHECKING:
    from suffice.convert.search import Combination, Quantity, SearchResult, Texts
    from suffice.convert.sources import Source
    from suffice.measure.statistics import Summary
    from suffice.train import Progress


LOOK = {"box": box.SIMPLE_HEAD, "show_edge": False, "pad_edge": False}
UNITS = {
    "state": ("kB", 1e-3, ",.1f"),
    "parameters": ("", 1.0, ",.0f"),
    "latency": ("us", 1e6, ",.1f"),
    "loss": ("nats", 1.0, ".4f"),
    "divergence": ("nats", 1.0, ".5f"),
}


def print_found(found: SearchResult, out: Path, folder: Path, command: list[str]) -> None:
    """Print the plan, what was predicted and measured of it, and how others do.

    Args:
        found: what the search has found.
        out: the file of the plan.
        folder: of the work behind it.
        command: the words that make the plan's model.
    """
    console = Console()
    console.print(_layers(found))
    console.print()
    console.print(_quantities(found))
    console.print()
    told = [*sentences(found), f"plan: {out}; all that was found: {folder}"]
    told.append(f"make it by: {shlex.join(command)}")
    console.print("\n".join(told), markup=False, highlight=False, soft_wrap=True)


def sentences(found: SearchResult) -> list[str]:
    """Return what the budget, the timing and the rivals say."""
    return [
        *filter(None, map(_budget, found.quantities)),
        _speed(found),
        _sum(found),
        *_rivals(found),
        *_time(found),
    ]


def _layers(found: SearchResult) -> Table:
    table = Table("layer", "becomes", "divergence alone", "state kB", "parameters", **LOOK)
    for one in found.layers:
        table.add_row(
            one.layer.removesuffix(".attention"),
            one.words.replace(",", ", "),
            _interval(one.divergence),
            f"{one.state / 1e3:,.1f}",
            f"{one.parameters:,}",
        )
    return table


def _quantities(found: SearchResult) -> Table:
    table = Table("", "source", "at most", "predicted", "measured", **LOOK)
    for one in found.quantities:
        unit, scale, form = UNITS[one.name]
        values = [one.source, one.bound, one.predicted, one.measured]
        cells = ["" if value is None else f"{value * scale:{form}}" for value in values]
        if one.low is not None and one.high is not None:
            cells[-1] += f" ({one.low * scale:{form}} to {one.high * scale:{form}})"
        table.add_row(f"{one.name} {unit}".strip(), *cells)
    return table


def _budget(one: Quantity) -> str:
    if one.bound is None:
        return ""
    share = f", {one.measured / one.source:.3g} of the source's" if one.source else ""
    told = {True: "is met", False: "IS NOT MET", None: "is not shown to be met: noise hides it"}
    return f"the bound of {one.name} {told[one.met]}{share}"


def _speed(found: SearchResult) -> str:
    """Say faster or slower only where the interval says so."""
    one = found.quantity("latency")
    low, high = one.low or one.measured, one.high or one.measured
    word = "as fast as the source within the noise"
    if high < one.source:
        word = f"{one.source / one.measured:.2f}x as fast as the source"
    elif low > one.source:
        word = f"{one.measured / one.source:.2f}x slower than the source"
    ways = found.way if found.way == found.source_way else f"{found.source_way}, then {found.way}"
    held = " -> ".join(f"{size / 1e3:,.1f}" for size in found.held)
    return (
        f"a step behind {found.length:,} tokens is {word} (steps: {ways}); states held with room "
        f"to grow {held} kB"
    )


def _sum(found: SearchResult) -> str:
    if found.additive is None:
        return "every layer stays as it is"
    if found.additive:
        return "the layers' divergences add up to the whole's within the noise"
    moved = "one of them is the plan" if found.moved else "none was better"
    return (
        f"the layers' divergences do not add up to the whole's, so {found.weighed} choices near it "
        f"were measured; {moved}"
    )


def _rivals(found: SearchResult) -> list[str]:
    told = [f"as wholes, on text that nothing was chosen by: the plan {_mix(found.plan)}"]
    best = found.uniform
    if best is None:
        told.append("no one option for all layers meets the budget")
    else:
        told.append(
            f"best of {len(found.of('uniform'))} uniform choices: {best.words[0]} {_mix(best)}"
        )
        told.append(_ahead(found))
    random = sorted(found.of("random"), key=lambda one: one.divergence.mean)
    if random:
        told.append(
            f"{len(random)} random mixes: the best {_mix(random[0])}, the median "
            f"{_mix(random[len(random) // 2])}"
        )
    return told


def _ahead(found: SearchResult) -> str:
    """Say which of both is nearer only where the interval says so."""
    gain, best = found.ahead, found.uniform
    if found.words == best.words:
        return "the plan is that choice"
    word = "not told apart from"
    if gain.high is not None and gain.high < 0:
        word = "nearer to the source than"
    elif gain.low is not None and gain.low > 0:
        word = "farther from the source than"
    return f"the plan is {word} it: divergence {_interval(gain, '+')} of difference, row by row"


def _mix(one: Combination) -> str:
    return (
        f"{_interval(one.divergence)}, loss {one.loss.mean:+.4f}, state {one.state / 1e3:,.1f} kB"
    )


def _interval(one: Summary, sign: str = "") -> str:
    form = f"{sign}.5f"
    ends = "" if one.low is None else f" ({one.low:{form}} to {one.high:{form}})"
    return f"{one.mean:{form}}{ends}"


def _time(found: SearchResult) -> list[str]:
    if found.scored == found.pairs:
        return []
    return [
        f"{found.scored} of {found.pairs} pairs of a layer and an option were scored in time; "
        "--resume with more --minutes scores the rest"
    ]


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
    from suffice.convert.search.search import rows_for
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


def _write(out: Path, found: SearchResult) -> None:
    """Write the plan, all that is known of it, and the figure."""
    from suffice.convert import plan_to_json
    from suffice.convert.search.result import draw
    from suffice.files import write_atomic
    from suffice.measure.machine import machine_facts, software_versions
    from suffice.measure.report.canvas import png

    told = found.to_json()
    facts = {key: told[key] for key in ("budget", "length", "quantities")}
    plan = plan_to_json(found.words, **facts)
    everything = {**told, "machine": {**machine_facts(), **software_versions()}}
    folder = folder_of(out)
    write_atomic(folder / "results.json", json.dumps(everything, indent=1, allow_nan=False) + "\n")
    write_atomic(folder / "figure.png", png(draw(found)))
    write_atomic(out, json.dumps(plan, indent=1, allow_nan=False) + "\n")
