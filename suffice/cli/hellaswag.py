"""What `suffice reproduce hellaswag` does with what it was asked."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from suffice.cli import training
from suffice.cli.printed import console_of, print_sheet, say
from suffice.data.own_files import digest
from suffice.data.own_files import found as found_at
from suffice.errors import ConfigError
from suffice.measure.evaluation import evaluate_task
from suffice.measure.machine import machine_facts
from suffice.models import folder as models
from suffice.reproduce.hellaswag import (
    FILE,
    MECHANISMS,
    NAME,
    RECIPE,
    Scored,
    digest_of,
    limit_of,
    publish_scores,
    published_scores,
    read_scored,
    scores_csv,
    scores_sheet,
    write_scored,
)
from suffice.reproduce.request import FOLDER
from suffice.threads import threads
from suffice.train import show

if TYPE_CHECKING:
    from suffice.cli.reproducing import Asked


def hellaswag(asked: Asked, console: Console) -> None:
    """Show the scores of the language models, after training them if that was asked for.

    Raises:
        ConfigError: if something was asked that they do not have.
    """
    if asked.heads or asked.seeds or asked.rerun:
        raise ConfigError(
            f"{NAME} scores one model of each mechanism, of seed 0; leave --heads, --seeds and "
            "--rerun out."
        )
    if asked.publish and asked.data:
        raise ConfigError(
            "--publish writes what anybody can train again; results on files of your own, --data, "
            "stay in their folder."
        )
    kept = () if asked.data else published_scores()
    scale = asked.scale or (kept[0].scale if kept else "paper")
    data = None if asked.data is None else found_at(asked.data)
    place = asked.out or _usual(scale, data)
    wanted = {
        name: training.Asked(
            recipe=RECIPE, scale=scale, mechanism=name, data=data, settings={}, seed=0
        )
        for name in MECHANISMS
    }
    if asked.run:
        threads(asked.threads)
        _run(wanted, place, asked, console)
    found = {one.mechanism: one for one in kept if one.scale == scale}
    for name, each in wanted.items():
        scored = read_scored(place / name) if _is_of(place / name, each) else None
        found |= {name: scored} if scored else {}
    _print([found[name] for name in MECHANISMS if name in found], scale, asked, console)


def _usual(scale: str, data: str | None) -> Path:
    suffix = "" if scale == "paper" else f"-{scale}"
    return FOLDER / f"{NAME}{suffix}{f'-{Path(data).name}-{digest(data)[:8]}' if data else ''}"


def _is_of(folder: Path, wanted: training.Asked) -> bool:
    """Say whether a folder holds this training; none may be there yet.

    Raises:
        ConfigError: if it holds another.
    """
    if not (folder / training.FILE).exists():
        return False
    if training.read_kept(folder) != wanted:
        raise ConfigError(
            f"{folder} holds a training with other settings; name another folder with --out."
        )
    return True


def _run(wanted: dict[str, training.Asked], place: Path, asked: Asked, console: Console) -> None:
    """Train and score what is not there; a training that was stopped goes on.

    No training is begun after the minutes that were given.
    """
    started, minutes = time.monotonic(), asked.means.minutes
    for name, each in wanted.items():
        folder = place / name
        if _is_of(folder, each) and read_scored(folder):
            continue
        if minutes is not None and time.monotonic() - started > 60 * minutes:
            return
        training.claim(folder, each, resume=True)
        training.Trained.write(each, folder, None if asked.means.quiet else console)
        made = training.Trained.open(each, folder)
        made.train(console=console, resume=True, quiet=asked.means.quiet, tensorboard=False)
        write_scored(folder, _scored(folder, each, console, quiet=asked.means.quiet))


def _scored(folder: Path, each: training.Asked, console: Console, *, quiet: bool) -> Scored:
    """Ask the model of a run."""
    lm, tokenizer, facts = models.load(folder)
    started, scale = time.perf_counter(), str(each.scale)
    with show(console, quiet=quiet) as progress:
        progress.cell(f"{NAME} {each.mechanism}")
        found = evaluate_task(lm, tokenizer, NAME, limit=limit_of(scale), step=progress.step)
    measured = facts["measured"]
    return Scored(
        mechanism=str(each.mechanism),
        scale=scale,
        corpus=Path(facts["corpus"]).name,
        steps=measured["step"],
        parameters=sum(parameter.numel() for parameter in lm.parameters()),
        validation_loss=measured["validation_loss"],
        weights=digest_of(folder / models.WEIGHTS),
        items=found.items,
        of=found.of,
        scores={score.name: score.value for score in found.scores},
        errors={score.name: score.standard_error for score in found.scores},
        seconds=time.perf_counter() - started,
        machine=machine_facts(),
    )


def _print(found: list[Scored], scale: str, asked: Asked, console: Console) -> None:
    if asked.publish:
        if not found:
            raise ConfigError(f"there is no {FILE} to publish yet; begin with --run.")
        console.print(f"published: {publish_scores(found)}", markup=False, soft_wrap=True)
    if asked.as_json:
        sys.stdout.write(json.dumps([dataclasses.asdict(one) for one in found], indent=1) + "\n")
    elif asked.as_csv:
        sys.stdout.write(scores_csv(found))
    else:
        print_sheet(scores_sheet(found, scale), console_of())
        if len(found) < len(MECHANISMS):
            say(f"What is blank was not run: suffice reproduce {NAME} --scale {scale} --run")
