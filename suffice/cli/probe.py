"""`suffice probe`: what attention can recall, with controls that must fail."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from suffice.cli import options
from suffice.cli.options import RUNS
from suffice.cli.terminal import Stopped, again, telling
from suffice.errors import ConfigError
from suffice.measure.statistics import Summary
from suffice.probe import Ablation, CheckpointReport, Finding, Recall, Report
from suffice.probe.report import ALARM, FAILED

if TYPE_CHECKING:
    from torch import Tensor

    from suffice.convert.sources import Source
    from suffice.probe import CheckpointReport, Report


ALARMED = 1  # the exit code when a control succeeds
FILE = "probe.json"
LENGTH, ROWS = 256, 32  # of text that branches are judged by: tokens of a row at most, rows


def probe(
    checkpoint: Annotated[
        Path | None,
        typer.Argument(help="A trained language model, as `suffice convert` reads it."),
    ] = None,
    mechanisms: Annotated[
        str | None,
        typer.Option(
            help="Instead: names, separated by commas; small models are trained.",
            autocompletion=options.mechanisms,
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Fewer and easier questions, two hops of standard alone: minutes on two cores.",
        ),
    ] = False,
    seeds: Annotated[
        int, typer.Option(help="Trainings of each mechanism; of a checkpoint, 32 rows for each.")
    ] = 3,
    data: Annotated[
        str | None,
        typer.Option(
            help="Text, a folder or a corpus' name: its validation part judges a checkpoint's "
            "branches too; the corpus it was trained on by default."
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Of the checkpoint, where it has none beside it.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the results; of mechanisms a new one in runs/ by default, of a "
            "checkpoint none."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the trainings in --out.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Ask mechanisms, or a trained model, for what stood earlier in a row.

    Mechanisms are trained from scratch on associative recall, copying, induction, a passkey and
    two hops. A checkpoint is asked as it is, and its branches are switched off one by one. Controls
    that must fail stand beside: if one succeeds, that is an alarm and the exit code is 1.
    """
    from suffice.cli.compare_options import words

    if (checkpoint is None) == (mechanisms is None):
        raise ConfigError("give a checkpoint or --mechanisms, one of the two.")
    if checkpoint is None:
        _refuse({"--data": data, "--tokenizer": tokenizer}, "a checkpoint")
        folder = _folder(out, resume=resume)
        with telling(again(folder), folder):
            found = _of_mechanisms(words(mechanisms or ""), folder, quick, seeds, device, quiet)
    else:
        _refuse({"--resume": resume or None}, "--mechanisms")
        folder = out
        found = _of_checkpoint(checkpoint, tokenizer, data, quick, seeds, device, quiet)
    _tell(found, folder, as_json=as_json)


def _refuse(given: dict[str, object], only: str) -> None:
    for option, value in given.items():
        if value is not None:
            raise ConfigError(f"{option} is for {only}; leave it out.")


def _folder(out: Path | None, *, resume: bool) -> Path:
    from suffice.cli.compare_options import STAMP

    if resume and out is None:
        raise ConfigError("--resume goes on in a folder; name it with --out.")
    folder = out or RUNS / f"probe-{datetime.now():{STAMP}}"
    if not resume and folder.is_dir() and os.listdir(folder):
        raise ConfigError(
            f"{folder} already holds something; go on with it by --resume, or choose another "
            "folder with --out."
        )
    return folder


def _of_mechanisms(
    names: tuple[str, ...], folder: Path, quick: bool, seeds: int, device: str, quiet: bool
) -> Report:
    from suffice.probe import probe_mechanisms, write_figure

    console = None if quiet else Console(stderr=True)
    given = {"quick": quick, "seeds": seeds, "device": device, "console": console}
    found = probe_mechanisms(names, folder, **given)
    write_figure(found, folder)
    return found


def _of_checkpoint(
    path: Path,
    tokenizer: Path | None,
    data: str | None,
    quick: bool,
    seeds: int,
    device: str,
    quiet: bool,
) -> CheckpointReport:
    from suffice.cli.terminal import as_cells
    from suffice.convert.sources import open_source
    from suffice.models import LM
    from suffice.probe import probe_checkpoint
    from suffice.train import resolve_device, show

    source = open_source(path, tokenizer=tokenizer)
    if not isinstance(source.model, LM):
        raise ConfigError(f"{path} is a {source.kind} model; a probe reads language models.")
    own = source.tokenizer
    begin, special = (None, ()) if own is None else (own.begin, (own.begin, own.end))
    size = source.model.config.vocabulary_size if own is None else own.vocabulary_size
    with show(Console(stderr=True), cells=2, quiet=quiet) as progress:
        return probe_checkpoint(
            source.model.to(resolve_device(device)).eval(),
            [one for one in range(size) if one not in special],
            begin=begin,
            text=_text(source, data),
            quick=quick,
            seeds=seeds,
            step=as_cells(progress),
        )


def _text(source: Source, named: str | None) -> Tensor | None:
    """Return rows of the text that judges branches; None where none is known."""
    from suffice.quantise.report import rows_of
    from suffice.text import corpus

    text = named or source.facts.get("corpus")
    if not isinstance(text, str):
        return None
    if source.tokenizer is None:
        raise ConfigError(f"{text} cannot be read without a tokenizer; name it by --tokenizer.")
    length = min(source.model.config.length, LENGTH)
    part = corpus(text).validation
    return rows_of(part, source.tokenizer, length=length, tokens=ROWS * length)


def _tell(found: Report | CheckpointReport, folder: Path | None, *, as_json: bool) -> None:
    """Write and print what was found, and raise the alarm if there is one."""
    from suffice.files import write_atomic

    content = json.dumps(found.to_json(), indent=1, allow_nan=False) + "\n"
    if folder is not None:
        write_atomic(folder / FILE, content)
    if as_json:
        sys.stdout.write(content)
    else:
        tell(found, folder)
    if found.alarms:
        raise Stopped(
            f"ALARM: {len(found.alarms)} of {len(found.controls)} controls succeeded, as "
            "nothing should: the questions can be answered in another way than by recall.",
            code=ALARMED,
        )


WIDTH = 100  # columns where the output is no terminal
KILO = 1024
MARK = "*"


def tell(found: Report | CheckpointReport, folder: Path | None) -> None:
    """Print tables of everything, then what became of the controls."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    if isinstance(found, Report):
        for task in dict.fromkeys(one.task for one in found.findings):
            _task(console, [one for one in found.findings if one.task == task])
    else:
        _recalls(console, found)
        _ablations(console, found.ablations)
    _say(console, _controls(found))
    if folder is not None:
        _say(console, f"results: {folder}")


def _task(console: Console, found: Sequence[Finding]) -> None:
    """Print one task: questions down, mechanisms across."""
    names = list(dict.fromkeys(one.mechanism for one in found))
    table = Table("accuracy, %", *names, box=None, pad_edge=False)
    for view in dict.fromkeys(one.view for one in found):
        shown = {one.mechanism: one for one in found if one.view == view}
        table.add_row(view or "test", *(_cell(shown.get(name)) for name in names))
    first = {name: next(one for one in found if one.mechanism == name) for name in names}
    table.add_row("solved at step", *(one.solved_at for one in first.values()))
    table.add_row("state of a layer", *(size(one.state) for one in first.values()))
    _say(console, f"\n{found[0].task}, chance {found[0].chance:.1%}")
    console.print(table)


def _cell(one: Finding | None) -> str:
    if one is None:
        return "-"
    mark = "" if not one.control else (f" {ALARM.partition(':')[0]}" if one.above else MARK)
    return f"{percent(one.accuracy)}{mark}"


def percent(found: Summary) -> str:
    """Return a mean and half its interval in percent.

    Example:
        >>> percent(Summary(n=1, mean=0.5, sd=None, low=None, high=None))
        '50.0'
    """
    if found.high is None:
        return f"{100 * found.mean:.1f}"
    return f"{100 * found.mean:.1f} ±{100 * (found.high - found.mean):.1f}"


def size(count: float) -> str:
    """Return bytes in words.

    Example:
        >>> size(512.0), size(6144.0)
        ('512 B', '6.0 KiB')
    """
    return f"{count:.0f} B" if count < KILO else f"{count / KILO:.1f} KiB"


def _recalls(console: Console, found: CheckpointReport) -> None:
    columns = ("asked", "back", "accuracy, %", "chance, %", "gain, nats", "")
    table = Table(*columns, box=None, pad_edge=False)
    for one in found.recalls:
        table.add_row(
            one.name,
            f"{one.back}",
            percent(one.accuracy),
            f"{100 * one.chance:.1f}",
            "" if one.gain is None else _half(one.gain),
            one.verdict,
        )
    far = "everything" if found.reach is None else f"{found.reach} tokens back"
    _say(console, f"recall of drawn tokens, {found.rows} rows each; the model can hear {far}")
    console.print(table)


def _ablations(console: Console, found: Sequence[Ablation]) -> None:
    if not found:
        _say(console, "\nno branches: every layer hears in one way, and all alike")
        return
    _say(console, "\nbranches switched off: the rise of the loss, nats per token")
    for branch, layers in dict.fromkeys((one.branch, one.layers) for one in found):
        _say(console, f"{branch} ({layers})")
        for one in found:
            if one.branch == branch:
                change = f"{one.before:.3f} {_interval(one.change)}"
                _say(console, f"  {one.on}: {change}, {one.verdict}")


def _half(found: Summary) -> str:
    """Return a mean and half its interval."""
    return f"{found.mean:+.2f}" + ("" if found.high is None else f" ±{found.high - found.mean:.2f}")


def _interval(found: Summary) -> str:
    if found.low is None:
        return f"{found.mean:+.4f}"
    return f"{found.mean:+.4f} ({found.low:+.4f} to {found.high:+.4f})"


def _controls(found: Report | CheckpointReport) -> str:
    """Return what became of the controls."""
    good = len(found.controls) - len(found.alarms)
    told = [f"\n{MARK} {FAILED}: {good} of {len(found.controls)}"]
    told += [
        f"  {reason}: {count}"
        for reason, count in _counted([one.control for one in found.controls if not one.above])
    ]
    return "\n".join([*told, *(f"{ALARM}: {_where(one)} ({one.control})" for one in found.alarms)])


def _counted(reasons: Sequence[str]) -> list[tuple[str, int]]:
    return [(reason, reasons.count(reason)) for reason in dict.fromkeys(reasons)]


def _where(one: Finding | Recall) -> str:
    if isinstance(one, Recall):
        return one.name
    return ", ".join(filter(None, (one.task, one.mechanism, one.view)))


def _say(console: Console, told: str) -> None:
    console.print(told, markup=False, highlight=False, soft_wrap=True)
