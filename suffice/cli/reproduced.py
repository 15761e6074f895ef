"""What `suffice reproduce` does with what it was asked."""

from __future__ import annotations

import json
import re
import shlex
import sys

from rich.console import Console

from suffice.cli.conversion import conversion
from suffice.cli.listed import list_tables
from suffice.cli.mapped import maps_of
from suffice.cli.printed import console_of, print_sheet, say
from suffice.cli.reproducing import Asked
from suffice.errors import ConfigError, unknown
from suffice.measure.report.table import lay_out
from suffice.reproduce.edge import finished, publish_edge, run_edge, wanted
from suffice.reproduce.edge_sheet import edge_sheet, latency_bars, records
from suffice.reproduce.edge_sheet import to_csv as edge_csv
from suffice.reproduce.finished import Key, gather
from suffice.reproduce.published import publish
from suffice.reproduce.report import save, write_report
from suffice.reproduce.request import FOLDER, Request, ask
from suffice.reproduce.shown import Shown, show, to_csv
from suffice.reproduce.table import Table
from suffice.reproduce.tables import TABLES, table
from suffice.reproduce.twice import twice
from suffice.reproduce.work import run_cells
from suffice.threads import threads


def answer(asked: Asked, console: Console) -> None:
    """Do what was asked and print it.

    Args:
        asked: the command line.
        console: where progress is shown.
    """
    if asked.table is None:
        list_tables(TABLES)
        return
    if asked.table in WRITERS:
        if asked.data and asked.table != "hellaswag":
            raise ConfigError(f"{asked.table} reads no data; leave --data out.")
        WRITERS[asked.table](asked, console)
        return
    if asked.table not in TABLES:
        raise unknown("table", asked.table, (*TABLES, *WRITERS))
    found = table(asked.table)
    SHOWS[found.shows](found, asked, console)


def _cells(found: Table, asked: Asked, console: Console) -> None:
    """Show one table of cells."""
    if asked.publish and asked.data:
        raise ConfigError(
            "--publish writes what anybody can train again; results on files of your own, --data, "
            "stay in their folder."
        )
    request = ask(
        found,
        scale=asked.scale,
        heads=asked.heads,
        seeds=asked.seeds,
        out=asked.out,
        data=asked.data,
    )
    if asked.rerun is not None:
        _again(request, asked, console)
        return
    request = _run(request, asked, console, more=bool(asked.heads or asked.seeds))
    if asked.publish:
        content = gather(request.plan, request.folder, list(request.finished), request.kept)
        console.print(f"published: {publish(found, content)}", markup=False, soft_wrap=True)
    _print(found, [show(request)], asked)


def _parts(found: Table, asked: Asked, console: Console) -> None:
    """Show the tables that a summary or a figure is made of."""
    if asked.rerun or asked.publish or asked.out:
        raise ConfigError(
            f"{found.name} is made of {', '.join(found.parts)}; give --rerun, --publish and --out "
            "with one of these."
        )
    parts = [part for part in map(table, found.parts) if part.known]
    shown = []
    for part in parts:
        heads = asked.heads or (None if found.figures else (max(part.heads),))
        request = ask(part, scale=asked.scale, heads=heads, seeds=asked.seeds, data=asked.data)
        shown.append(show(_run(request, asked, console, more=bool(asked.heads or asked.seeds))))
    _print(found, shown, asked)


def _run(request: Request, asked: Asked, console: Console, *, more: bool) -> Request:
    """Train what is missing if that was asked for, and return what is finished then."""
    if not request.missing or not (asked.run or more):
        return request
    run_cells(
        request.plan,
        request.missing,
        request.folder,
        asked.means,
        console=console,
        command=asked.command,
    )
    return request.again()


def _again(request: Request, asked: Asked, console: Console) -> None:
    """Train one cell again and print it beside the finished one."""
    key = _key(asked.rerun or "")
    sheet = twice(request, key, asked.means, console=console, command=asked.command)
    console_of().print(lay_out(sheet))


def _key(word: str) -> Key:
    """Read the name of a cell.

    Raises:
        ConfigError: if it is none.
    """
    found = re.fullmatch(r"(.+):([0-9]{1,6}):([0-9]{1,9})", word)  # 32 bits of a seed count
    if found is None:
        raise ConfigError(
            f"--rerun {word!r} names no cell; give MECHANISM:HEADS:SEED, such as standard:4:0."
        )
    return found[1], int(found[2]), int(found[3])


def _edge(found: Table, asked: Asked, console: Console) -> None:
    """Show an edge table, after timing what it lacks if that was asked for.

    Raises:
        ConfigError: if something was asked that times of drawn inputs do not have.
    """
    if asked.seeds or asked.rerun or asked.scale or asked.data:
        raise ConfigError(
            f"{found.name} times models that were not trained; leave --seeds, --scale, --rerun and "
            "--data out. To time again, choose another folder with --out."
        )
    keys = wanted(found, asked.heads)
    folder = asked.out or FOLDER / found.store
    if asked.run:
        threads(asked.threads)
        run_edge(found, folder, keys, console=None if asked.means.quiet else console)
    edge = finished(found, folder, keys)
    done = {(group.timed[0].recipe, group.timed[0].num_heads) for group in edge.groups}
    if asked.publish:
        console.print(f"published: {publish_edge(found, edge)}", markup=False, soft_wrap=True)
    if asked.as_json:
        sys.stdout.write(json.dumps(records(found, edge), indent=1) + "\n")
    elif asked.as_csv:
        sys.stdout.write(edge_csv(found, edge))
    else:
        missing = [key for key in keys if key not in done]
        print_sheet(edge_sheet(found, edge, missing), console_of())
        if missing:
            say(f"What is missing was not timed: suffice reproduce {found.name} --run")
    if asked.report and edge.groups:
        folder = folder / "report"
        save(latency_bars(found, edge), folder / "latency")
        console.print(f"report: {folder}", markup=False, highlight=False, soft_wrap=True)


def _flops(asked: Asked, console: Console) -> None:  # noqa: ARG001 - of the table of writers
    """Print the counts of FLOPs and draw their figures."""
    from suffice.reproduce.flops import flops

    folder = asked.out or FOLDER / "flops"
    flops(folder, console_of())
    say(f"figures: {folder}")


def _evidence(asked: Asked, console: Console) -> None:
    """Print what was found about each claim of the papers; --publish writes docs/evidence.md."""
    from suffice.reproduce.evidence import page, write_page

    if asked.publish:
        console.print(f"written: {write_page()}", markup=False, soft_wrap=True)
    else:
        sys.stdout.write(page())


def _hellaswag(asked: Asked, console: Console) -> None:
    """Print HellaSwag of the language models."""
    from suffice.cli.hellaswag import hellaswag

    hellaswag(asked, console)


SHOWS = {"cells": _cells, "parts": _parts, "edge": _edge, "maps": maps_of}
WRITERS = {
    "flops": _flops,
    "evidence": _evidence,
    "hellaswag": _hellaswag,
    "conversion": conversion,
}


def _print(found: Table, shown: list[Shown], asked: Asked) -> None:
    """Print tables in the form that was asked for, and write the report."""
    if asked.report:
        own = shown[0].request.folder if asked.data else FOLDER / found.name
        folder = write_report(found, shown, (asked.out or own) / "report")
    if asked.as_json:
        sys.stdout.write(json.dumps([part.to_json() for part in shown], indent=1) + "\n")
    elif asked.as_csv:
        sys.stdout.write(to_csv(shown))
    else:
        console = console_of()
        for part in shown:
            print_sheet(part.sheet(), console)
        if any(part.missing for part in shown):
            own = f" --data {shlex.quote(asked.data)}" if asked.data else ""
            say(f"What is blank was not run: suffice reproduce {found.name}{own} --run")
        if asked.report:
            say(f"report: {folder}")
