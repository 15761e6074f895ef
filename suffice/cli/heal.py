"""`suffice heal`: train a converted model back towards what it was."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from suffice.cli.again import again
from suffice.cli.defaults import DEVICE
from suffice.cli.stop import telling
from suffice.errors import ConfigError

if TYPE_CHECKING:
    from suffice.convert.certificate import LossChange
    from suffice.heal import HealingReport, Stage


def heal(
    checkpoint: Annotated[Path, typer.Argument(help="Folder that `suffice convert` wrote.")],
    teacher: Annotated[
        Path | None,
        typer.Option(help="What it was converted from: anything `suffice convert` reads."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Text, a folder or a corpus' name: the training part is learned; half of the "
            "validation part chooses the weights, the other half judges. The corpus it was trained "
            "on by default."
        ),
    ] = None,
    lora: Annotated[
        bool,
        typer.Option(
            "--lora", help="Learn low-rank adapters in place of all weights; merged at the end."
        ),
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Of training; 10 unless --steps is given. The control makes as many steps."
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Of training, in place of minutes.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Of the healing: regression, regression_rate, learning_rate, kl, "
            "batch_size, length, warmup, evaluate_every, evaluation_batches, rank, alpha; "
            "repeatable.",
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Of the teacher, where it has none beside it.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of rows, dropout and adapters.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = DEVICE,
    out: Annotated[
        Path | None, typer.Option(help="Folder of what comes out; CHECKPOINT-healed by default.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the healing in --out, in the same words.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Train a converted model back towards what it was, and say what that was worth.

    First the converted layers learn the outputs of the teacher's, then the whole model its answers
    and the text. The report has the same budget spent on the unconverted model beside it. The
    folder is one as `suffice train` writes it, with healing.json.
    """
    from suffice.cli.healing import Asked, Patient, claim, read_settings, unclaiming
    from suffice.train import show

    out = out or checkpoint.with_name(f"{checkpoint.name}-healed")
    for told, path in (("checkpoint", checkpoint), ("teacher", teacher)):
        if path is not None and out.resolve() == path.resolve():
            raise ConfigError(f"--out {out} is the {told} itself, which would be lost.")
    asked = Asked(
        checkpoint=str(checkpoint),
        teacher=None if teacher is None else str(teacher),
        data=data,
        tokenizer=None if tokenizer is None else str(tokenizer),
        lora=lora,
        minutes=minutes,
        steps=steps,
        settings=read_settings(settings or []),
        seed=seed,
        device=device,
    )
    patient = Patient.open(asked)
    claim(out, asked, resume=resume)
    console = Console(stderr=True)
    with (
        telling(again(out), out),
        unclaiming(out),
        show(console, cells=3, quiet=quiet) as progress,
    ):
        texts = patient.texts(out, None if quiet else console)
        healed = patient.heal(out, texts, resume=resume, progress=progress)
        patient.save(out, healed)
    if as_json:
        sys.stdout.write(json.dumps(healed.report.to_json(), indent=1, allow_nan=False) + "\n")
        return
    _print(healed.report, out)


def _print(report: HealingReport, out: Path) -> None:
    console = Console()
    columns = ("model", "loss", "against the teacher", "steps", "tokens", "minutes")
    table = Table(*columns, box=None, pad_edge=False)
    table.add_row("teacher", f"{report.converted.before:.4f}")
    table.add_row("converted", *_change(report.converted))
    changes = {"regressed": report.regressed, "distilled": report.healed}
    changes["control"] = report.control
    given = {name: change for name, change in changes.items() if change is not None}
    for (name, change), stage in zip(given.items(), report.stages, strict=True):
        table.add_row(name, *_change(change), *_budget(stage))
    console.print(table)
    judged = report.healed
    told = [
        f"healed against converted {_interval(report.gained)}, against the control "
        f"{_interval(report.against_control)} nats per token; 95% intervals, paired over "
        f"{judged.rows} rows of held-out text, {judged.tokens:,} tokens",
        "control: the unconverted model, as many steps on the same rows, the same optimiser, "
        "cross-entropy alone",
    ]
    kept = [stage.name for stage in report.stages if not stage.best_step]
    if kept:
        told.append(f"no better on the validation text, so left out: {', '.join(kept)}")
    told.append(f"model: {out}")
    console.print("\n".join(told), markup=False, highlight=False, soft_wrap=True)


def _change(change: LossChange) -> tuple[str, str]:
    return f"{change.after:.4f}", _interval(change)


def _interval(change: LossChange) -> str:
    ends = "" if change.low is None else f" ({change.low:+.4f} to {change.high:+.4f})"
    return f"{change.change:+.4f}{ends}"


def _budget(stage: Stage) -> tuple[str, ...]:
    return f"{stage.steps:,}", f"{stage.tokens:,}", f"{stage.minutes:.1f}"
