"""`suffice probe`: what attention can recall, with controls that must fail."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from suffice.cli import options
from suffice.cli.options import Device, JsonFlag, Quiet
from suffice.cli.terminal import (
    PLAIN,
    Stopped,
    format_interval,
    print_json,
    print_text,
    resumable,
    step_by_cells,
    to_json,
    wide_console,
)
from suffice.errors import ConfigError
from suffice.utils.files import refuse_current, write_atomic
from suffice.utils.grammar import split_list

if TYPE_CHECKING:
    from torch import Tensor

    from suffice.convert.sources import Source
    from suffice.measure.probe import Ablation, Finding, Report
    from suffice.measure.statistics import Summary

CONTROL_SUCCEEDED = 1  # the exit code when a control succeeds
FILE = "probe.json"
LENGTH, ROWS = 256, 32  # of the text that ablations are measured on: tokens of a row at most, rows
WIDTH = 100  # columns where the output is not a terminal
MARK = "*"


def probe(
    checkpoint: Annotated[
        Path | None,
        Argument(
            callback=options.existing,
            help="Trained language model, anything `suffice convert` reads.",
        ),
    ] = None,
    mechanisms: Annotated[
        str | None,
        Option(
            help="Instead of a checkpoint: names, separated by commas; small models are trained.",
            **options.A_MECHANISM,
        ),
    ] = None,
    quick: Annotated[
        bool,
        Option(
            "--quick",
            help="Fewer and easier questions, two hops for standard only: minutes on two cores.",
        ),
    ] = False,
    seeds: Annotated[
        int, Option(help="Training runs of each mechanism; for a checkpoint, times 32 rows.")
    ] = 3,
    data: Annotated[
        str | None,
        Option(
            help="Text file, folder or name of a corpus: its validation part also measures the "
            "ablations of a checkpoint; by default the corpus the model was trained on."
        ),
    ] = None,
    tokenizer: options.TokenizerOption = None,
    device: Device = "cpu",
    out: Annotated[
        Path | None,
        Option(
            help="Folder of the results; by default a new one in runs/ for mechanisms, none for a "
            "checkpoint."
        ),
    ] = None,
    resume: Annotated[bool, Option("--resume", help="Resume the training runs in --out.")] = False,
    as_json: JsonFlag = False,
    quiet: Quiet = False,
) -> None:
    """Test whether mechanisms, or a trained model, recall tokens from earlier in the input.

    Mechanisms are trained from scratch on associative recall, copying, induction, a passkey and two
    hops. A checkpoint is tested as it is, and its branches are switched off one by one. Controls
    that must fail are tested, too: if one succeeds, that is an alarm and the exit code is 1.
    """
    from suffice.convert.sources import open_source
    from suffice.measure.probe import probe_checkpoint, probe_mechanisms, write_figure
    from suffice.models import LM
    from suffice.train import resolve_device
    from suffice.utils.progress import show

    if (checkpoint is None) == (mechanisms is None):
        raise ConfigError("give either a checkpoint or --mechanisms, not both.")
    if checkpoint is None:
        _refuse({"--data": data, "--tokenizer": tokenizer}, "a checkpoint")
        folder, names = _folder(out, resume=resume), split_list(mechanisms or "")
        settings = {"quick": quick, "seeds": seeds, "device": device}
        with resumable(folder):
            console = None if quiet else Console(stderr=True)
            report = probe_mechanisms(names, folder, **settings, console=console)
            write_figure(report, folder)
    else:
        _refuse({"--resume": resume or None}, "--mechanisms")
        folder = None if out is None else _folder(out, resume=False)
        source = open_source(checkpoint, tokenizer=tokenizer)
        if not isinstance(source.model, LM):
            raise ConfigError(
                f"{checkpoint} is a {source.kind} model; only language models can be probed."
            )
        with show(Console(stderr=True), cells=2, quiet=quiet) as progress:
            report = probe_checkpoint(
                source.model.to(resolve_device(device)).eval(),
                _symbols(source),
                begin=None if source.tokenizer is None else source.tokenizer.begin,
                text=_text(source, data),
                quick=quick,
                seeds=seeds,
                step=step_by_cells(progress),
            )
    finish(report, folder, as_json=as_json)


def _refuse(given: dict[str, object], only: str) -> None:
    for option, value in given.items():
        if value is not None:
            raise ConfigError(f"{option} is for {only}; leave it out.")


def _folder(out: Path | None, *, resume: bool) -> Path:
    if resume and out is None:
        raise ConfigError("--resume needs the folder to resume; name it with --out.")
    folder = out or options.new_run("probe")
    refuse_current(folder)
    # a run that ended before it began leaves hidden files alone
    if not resume and any(not x.name.startswith(".") for x in folder.rglob("*") if x.is_file()):
        raise ConfigError(
            f"{folder} is not empty; resume it with --resume if mechanisms were trained there, or "
            "choose another folder with --out."
        )
    return folder


def _symbols(source: Source) -> list[int]:
    if source.tokenizer is None:
        return list(range(source.model.config.vocabulary_size))
    special = (source.tokenizer.begin, source.tokenizer.end)
    return [id_ for id_ in range(source.tokenizer.vocabulary_size) if id_ not in special]


def _text(source: Source, name: str | None) -> Tensor | None:
    from suffice.quantise.report import rows_of
    from suffice.text import corpus

    text = name or source.facts.get("corpus")
    if not isinstance(text, str):
        return None
    if source.tokenizer is None:
        raise ConfigError(f"{text} cannot be read without a tokenizer; name one with --tokenizer.")
    length = min(source.model.config.length, LENGTH)
    documents = corpus(text).validation
    return rows_of(documents, source.tokenizer, length=length, tokens=ROWS * length)


def finish(report: Report, folder: Path | None, *, as_json: bool) -> None:
    """Write and print a report."""
    if folder is not None:
        write_atomic(folder / FILE, to_json(report.to_json()))
    if as_json:
        print_json(report.to_json())
    else:
        print_report(report, folder)
    if report.alarms:
        raise Stopped(
            f"ALARM: {len(report.alarms)} of {len(report.controls)} controls succeeded, which "
            "should be impossible: the questions can be answered without recall.",
            code=CONTROL_SUCCEEDED,
        )


def print_report(report: Report, folder: Path | None) -> None:
    """Print tables of everything, then the outcome of the controls."""
    console = wide_console(WIDTH)
    if report.kind == "mechanisms":
        for task in dict.fromkeys(result.task for result in report.findings):
            _task(console, [result for result in report.findings if result.task == task])
    else:
        _recalls(console, report)
        _ablations(console, report.ablations)
    print_text(_controls(report), console)
    if folder is not None:
        print_text(f"results: {folder}", console)
    if folder is not None and report.findings:
        task = shlex.quote(str(folder / report.findings[0].task))
        print_text(f"a task is a comparison; report it: suffice compare --resume --out {task}")


def _task(console: Console, findings: Sequence[Finding]) -> None:
    from suffice.measure.report.tables import size

    names = list(dict.fromkeys(result.mechanism for result in findings))
    table = Table("accuracy, %", *names, **PLAIN)
    for view in dict.fromkeys(result.view for result in findings):
        shown = {result.mechanism: result for result in findings if result.view == view}
        table.add_row(view or "test", *(_cell(shown.get(name)) for name in names))
    first = {
        name: next(result for result in findings if result.mechanism == name) for name in names
    }
    table.add_row("solved at step", *(result.solved_at for result in first.values()))
    table.add_row(
        "KV cache or state of a layer", *(size(result.state) for result in first.values())
    )
    print_text(f"\n{findings[0].task}, chance {findings[0].chance:.1%}", console)
    console.print(table)


def _cell(result: Finding | None) -> str:
    if result is None:
        return "-"
    mark = "" if not result.control else " ALARM" if result.above else MARK
    return f"{with_half(result.accuracy)}{mark}"


def with_half(summary: Summary, form: str = ".1f", scale: float = 100.0) -> str:
    """Return a mean and half its interval, in percent by default.

    Example:
        >>> from suffice.measure.statistics import Summary
        >>> with_half(Summary(n=1, mean=0.5, sd=None, low=None, high=None))
        '50.0'
    """
    mean = f"{scale * summary.mean:{form}}"
    if summary.high is None:
        return mean
    return f"{mean} ±{scale * (summary.high - summary.mean):{form.lstrip('+')}}"


def _recalls(console: Console, report: Report) -> None:
    columns = ("question", "back", "accuracy, %", "chance, %", "gain, nats", "")
    table = Table(*columns, **PLAIN)
    for result in report.recalls:
        table.add_row(
            result.name,
            f"{result.back}",
            with_half(result.accuracy),
            f"{100 * result.chance:.1f}",
            "" if result.gain is None else with_half(result.gain, "+.2f", 1.0),
            result.verdict,
        )
    rows, reach = (report.facts[name] for name in ("rows", "reach"))
    far = "everything" if reach is None else f"{reach} tokens back"
    print_text(f"recall of drawn tokens, {rows} rows each; the model can attend to {far}", console)
    console.print(table)


def _ablations(console: Console, ablations: Sequence[Ablation]) -> None:
    if not ablations:
        print_text("\nno branches: every layer attends in one way, and all alike", console)
        return
    print_text("\nbranches switched off: the rise of the loss, nats per token", console)
    for branch, layers in dict.fromkeys((result.branch, result.layers) for result in ablations):
        print_text(f"{branch} ({layers})", console)
        for result in ablations:
            if result.branch == branch:
                rise = result.change
                change = format_interval(rise.mean, rise.low, rise.high, "+.4f")
                text = f"  {result.on}: {result.before:.3f} {change}, {result.verdict}"
                print_text(text, console)


def _controls(report: Report) -> str:
    from suffice.measure.probe.report import ALARM, FAILED

    failed = Counter(result.control for result in report.controls if not result.above)
    lines = [f"\n{MARK} {FAILED}: {failed.total()} of {len(report.controls)}"]
    lines += [f"  {reason}: {count}" for reason, count in failed.items()]
    lines += [f"{ALARM}: {result.name} ({result.control})" for result in report.alarms]
    return "\n".join(lines)
