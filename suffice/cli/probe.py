"""`suffice probe`: what attention can recall, with controls that must fail."""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from suffice.cli import completed
from suffice.cli.again import again
from suffice.cli.defaults import RUNS
from suffice.cli.stop import Stopped, telling
from suffice.errors import ConfigError

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
            autocompletion=completed.mechanisms,
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
    from suffice.cli.asked import words

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
    from suffice.cli.asked import STAMP

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
    from suffice.cli.steps import as_cells
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
    from suffice.quantise.text import rows_of
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
    from suffice.cli.probed import tell
    from suffice.measure.storage import write_atomic

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
