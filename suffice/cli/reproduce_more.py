"""What `suffice reproduce attention-maps` does with what it was asked."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from suffice.cli import train
from suffice.data import load
from suffice.data.files import digest, resolve
from suffice.errors import ConfigError
from suffice.files import write_atomic
from suffice.measure.evaluation import evaluate_task
from suffice.measure.machine import machine_facts
from suffice.measure.report.sheet import Sheet, rich_table
from suffice.models import folder as models
from suffice.papers import edge
from suffice.papers.conversion import MINUTES, finished, publish, run, sheet, to_csv, wanted
from suffice.papers.figures import save
from suffice.papers.hellaswag import (
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
from suffice.papers.jobs import Execution, run_cells
from suffice.papers.maps import (
    Maps,
    ask_maps,
    lacking,
    look,
    maps_csv,
    maps_figure,
    maps_records,
    maps_sheet,
)
from suffice.papers.request import FOLDER, Request, ask
from suffice.papers.tables import Table, table
from suffice.records import encode
from suffice.torch_compat import threads
from suffice.train import show

if TYPE_CHECKING:
    from pathlib import Path


WIDTH = 150  # columns of a table that goes to a file or a pipe


def print_sheet(sheet: Sheet, console: Console) -> None:
    """Print one table and an empty line."""
    console.print(rich_table(sheet))
    console.print()


def say(text: str) -> None:
    """Print a line as it is."""
    console_of().print(text, markup=False, highlight=False, soft_wrap=True)


def console_of() -> Console:
    """Return standard output, wide enough for a table."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    return console


def maps_of(found: Table, asked: Asked, console: Console) -> None:
    """Show what the models of some tables look at, after training them if that was asked for.

    Raises:
        ConfigError: if something was asked that maps do not have, or there are no weights.
    """
    if asked.seeds or asked.rerun or asked.publish:
        raise ConfigError(
            f"{found.name} looks into one model of each mechanism, of seed 0; leave --seeds, "
            "--rerun and --publish out."
        )
    if asked.out and len(found.parts) > 1:
        raise ConfigError(
            "--out is the working folder of one table; give it with one of "
            f"{', '.join(f'{found.name}-{part.partition(chr(45))[2]}' for part in found.parts)}."
        )
    parts, missing = [], []
    for part in map(table, found.parts):
        request = ask_maps(
            part, scale=asked.scale, heads=asked.heads, out=asked.out, data=asked.data
        )
        _train(request, asked, console)
        missing += [(request, key) for key in lacking(request)]
        parts.append(_look(request, None if asked.means.quiet else console))
    shown = [maps for maps in parts if maps]
    if not shown:
        scales = {request.recipe.scale for request, _ in missing}
        raise ConfigError(
            f"there are no trained weights to look into in "
            f"{', '.join(sorted({str(request.folder) for request, _ in missing}))}; train them: "
            f"suffice reproduce {found.name} --scale {'/'.join(sorted(scales))} --run"
        )
    _print(found, shown, asked)
    if missing and not (asked.as_json or asked.as_csv):
        listed = ", ".join(f"{key[0]} of {request.table.name}" for request, key in missing)
        say(f"No weights are there of {listed}: suffice reproduce {found.name} --run")


def _train(request: Request, asked: Asked, console: Console) -> None:
    """Train the models whose weights are not there, if that was asked for."""
    keys = lacking(request) if asked.run else []
    if keys:
        run_cells(
            request.plan, keys, request.folder, asked.means, console=console, command=asked.command
        )


def _look(request: Request, console: Console | None) -> list[Maps]:
    gone = lacking(request)
    keys = [key for key in request.plan.cells if key not in gone]
    if not keys:
        return []
    recipe = request.recipe
    dataset = load(recipe.task, console=console, **dict(recipe.task_options))
    return [look(request, key, dataset) for key in keys]


def _print(found: Table, shown: list[list[Maps]], asked: Asked) -> None:
    every = [one for maps in shown for one in maps]
    own = every[0].request.folder if asked.data else FOLDER / found.name
    folder = (asked.out or own) / "report"
    if asked.report:
        _draw(every, folder)
    if asked.as_json:
        sys.stdout.write(json.dumps(maps_records(every), indent=1) + "\n")
    elif asked.as_csv:
        sys.stdout.write(maps_csv(every))
    else:
        for maps in shown:
            print_sheet(maps_sheet(maps), console_of())
        if asked.report:
            say(f"report: {folder}")


def _draw(every: list[Maps], folder: Path) -> None:
    """Write the figures, and the numbers about them."""
    write_atomic(folder / "maps.json", json.dumps(maps_records(every), indent=1) + "\n")
    write_atomic(folder / "maps.csv", maps_csv(every))
    for one in every:
        mechanism, heads, _ = one.key
        name = f"maps-{one.request.table.name}-{one.request.recipe.scale}-{mechanism}-h{heads}"
        save(maps_figure(one), folder / name)


def conversion(asked: Asked, console: Console) -> None:
    """Show the table, after making what it lacks if that was asked for.

    Raises:
        ConfigError: if something was asked that the table does not have.
    """
    given = {"--seeds": asked.seeds, "--heads": asked.heads, "--scale": asked.scale}
    given["--rerun"] = asked.rerun
    if strange := [name for name, value in given.items() if value is not None]:
        raise ConfigError(
            f"the table conversion has no {strange[0]}; leave it out. To convert again, choose "
            "another folder with --out."
        )
    keys, folder = wanted(), asked.out or FOLDER / "conversion"
    if asked.run:
        threads(asked.threads)
        minutes = MINUTES if asked.heal_minutes is None else asked.heal_minutes
        limit, quiet = asked.means.minutes, asked.means.quiet
        run(folder, keys, minutes=minutes, limit=limit, console=console, quiet=quiet)
    found = finished(folder, keys)
    if asked.publish:
        console.print(f"published: {publish(found)}", markup=False, soft_wrap=True)
    if asked.as_json:
        sys.stdout.write(json.dumps(encode(asdict(found)), indent=1) + "\n")
    elif asked.as_csv:
        sys.stdout.write(to_csv(found))
    else:
        print_sheet(sheet(found), console_of())
        if len(found.rows) < len(keys):
            say("What is missing was not run: suffice reproduce conversion --run")


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
    data = None if asked.data is None else resolve(asked.data)
    place = asked.out or _usual(scale, data)
    wanted = {
        name: train.Asked(
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
    _print_hellaswag([found[name] for name in MECHANISMS if name in found], scale, asked, console)


def _usual(scale: str, data: str | None) -> Path:
    suffix = "" if scale == "paper" else f"-{scale}"
    return FOLDER / f"{NAME}{suffix}{f'-{Path(data).name}-{digest(data)[:8]}' if data else ''}"


def _is_of(folder: Path, wanted: train.Asked) -> bool:
    """Say whether a folder holds this training; none may be there yet.

    Raises:
        ConfigError: if it holds another.
    """
    if not (folder / train.FILE).exists():
        return False
    if train.read_kept(folder) != wanted:
        raise ConfigError(
            f"{folder} holds a training with other settings; name another folder with --out."
        )
    return True


def _run(wanted: dict[str, train.Asked], place: Path, asked: Asked, console: Console) -> None:
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
        train.claim(folder, each, resume=True)
        train.Trained.write(each, folder, None if asked.means.quiet else console)
        made = train.Trained.open(each, folder)
        made.train(console=console, resume=True, quiet=asked.means.quiet, tensorboard=False)
        write_scored(folder, _scored(folder, each, console, quiet=asked.means.quiet))


def _scored(folder: Path, each: train.Asked, console: Console, *, quiet: bool) -> Scored:
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


def _print_hellaswag(found: list[Scored], scale: str, asked: Asked, console: Console) -> None:
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


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line says.

    Args:
        table: name, None for the list.
        run: train what is missing.
        heads: instead of the table's.
        seeds: instead of the table's.
        scale: of the recipe.
        rerun: a cell to train again.
        out: working folder.
        data: files of the user's instead of the task's own.
        publish: write the package's results.
        as_json: print JSON.
        as_csv: print CSV.
        report: draw figures.
        command: the command itself.
        threads: as given, None where not.
        heal_minutes: of each row of the table conversion, None where not given.
        means: how cells are run.

    Raises:
        ConfigError: if two of these contradict each other.
    """

    table: str | None
    run: bool
    heads: tuple[int, ...] | None
    seeds: int | None
    scale: str | None
    rerun: str | None
    out: Path | None
    data: str | None
    publish: bool
    as_json: bool
    as_csv: bool
    report: bool
    command: str
    threads: int | None
    heal_minutes: float | None
    means: Execution

    def __post_init__(self) -> None:
        if self.as_json and self.as_csv:
            raise ConfigError("--json and --csv are two forms of one answer; give one of them.")
        if self.seeds is not None and self.seeds < 1:
            raise ConfigError(f"--seeds {self.seeds}: give at least 1.")
        if self.heal_minutes is not None and self.table != "conversion":
            raise ConfigError(
                "--heal-minutes is of the table conversion, whose models are healed; leave it out."
            )


OTHERS = {
    "flops": (
        "Equation 24 and true FLOPs",
        "v2 appendix B.2, v3 figures 2, 5, 6 and 7",
        "computed",
    ),
    "hellaswag": (
        "HellaSwag of GPT-2 124M, by both scorers",
        "v3 section 4.1",
        "from language models that --run trains",
    ),
    "conversion": ("Loss of converted and of healed models", "none", "from real checkpoints"),
    "evidence": ("What became of forty claims", "v1, v2, v3", "from all results"),
}


def list_tables(tables: dict[str, Table]) -> None:
    """Print every table with what is finished."""
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in ("table", "shows", "in the paper", "finished"):
        grid.add_column(Text(column), no_wrap=column == "table")
    for name, found in tables.items():
        grid.add_row(Text(name), Text(found.headline), Text(found.source), Text(_state(found)))
    for name, said in OTHERS.items():
        grid.add_row(Text(name), *map(Text, said))
    console_of().print(grid)


def _state(found: Table) -> str:
    """Say how much of a table is finished."""
    if found.shows in ("parts", "maps"):
        return "from " + ", ".join(found.parts)
    if found.shows == "edge":
        keys = edge.wanted(found)
        return (
            f"{len(edge.finished(found, FOLDER / found.store, keys).groups)} of {len(keys)} groups"
        )
    if not found.known:
        return f"recipe {found.recipe} is not there yet"
    request = ask(found)
    done = len(request.plan.cells) - len(request.missing)
    return f"{done} of {len(request.plan.cells)} cells, scale {request.recipe.scale}"
