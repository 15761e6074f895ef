"""What `suffice reproduce attention-maps` does with what it was asked."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from rich.console import Console

from suffice.cli.printed import console_of, print_sheet, say
from suffice.data import load
from suffice.errors import ConfigError
from suffice.measure.storage import write_atomic
from suffice.reproduce.maps import Maps, ask_maps, lacking, look
from suffice.reproduce.maps_figure import maps_figure
from suffice.reproduce.maps_sheet import maps_csv, maps_records, maps_sheet
from suffice.reproduce.report import save
from suffice.reproduce.request import FOLDER, Request
from suffice.reproduce.table import Table
from suffice.reproduce.tables import table
from suffice.reproduce.work import run_cells

if TYPE_CHECKING:
    from pathlib import Path

    from suffice.cli.reproducing import Asked


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
