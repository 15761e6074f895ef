"""`suffice reproduce`: the tables and figures of the papers, ours beside theirs."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from suffice.cli import options
from suffice.cli.reproduce_more import (
    Asked,
    console_of,
    conversion,
    list_tables,
    maps_of,
    print_sheet,
    say,
)
from suffice.cli.terminal import INTERRUPTED, Stopped
from suffice.errors import ConfigError, unknown
from suffice.measure.report.sheet import rich_table
from suffice.papers.edge import (
    edge_sheet,
    finished,
    latency_bars,
    publish_edge,
    records,
    run_edge,
    wanted,
)
from suffice.papers.edge import to_csv as edge_csv
from suffice.papers.figures import save, write_report
from suffice.papers.jobs import run_cells
from suffice.papers.request import FOLDER, Request, ask, twice
from suffice.papers.results import Key, gather, publish
from suffice.papers.rows import Shown, show, to_csv
from suffice.papers.tables import TABLES, Table, table
from suffice.torch_compat import threads


def reproduce(
    table: Annotated[
        str | None,
        typer.Argument(
            help="Name of a table or figure; a list of them without one.",
            autocompletion=options.tables,
        ),
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Train what is missing; more --seeds or --heads do too.")
    ] = False,
    heads: Annotated[
        str | None, typer.Option(help="Numbers such as 1,4; the paper's by default.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Trainings of each row; 5 by default.")] = None,
    scale: Annotated[
        str | None, typer.Option(help="paper or small; that of the published results by default.")
    ] = None,
    rerun: Annotated[
        str | None,
        typer.Option(
            metavar="MECHANISM:HEADS:SEED",
            help="Train this cell again and show it beside the finished one.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Cells trained at the same time.")] = 1,
    threads: Annotated[
        int | None,
        typer.Option(help="Threads of each training, 1 by default; edge times take all."),
    ] = None,
    max_minutes: Annotated[
        float | None, typer.Option(help="No cell is begun after these minutes.")
    ] = None,
    heal_minutes: Annotated[
        float | None,
        typer.Option(help="Of healing in each row of the table conversion; 5 by default."),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="local, or ray for a cluster (needs the extra of that name).")
    ] = "local",
    address: Annotated[
        str | None, typer.Option(help="Of the cluster: auto for the one here, local for a new one.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Working folder, also one of suffice compare; runs/reproduce/TABLE."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Your own files, in a folder of results of their own: lines of JSON for amazon "
            "and scaling, PATH.en and PATH.es for translation, a folder for imagenet."
        ),
    ] = None,
    publish: Annotated[
        bool,
        typer.Option("--publish", help="Write what is finished to suffice/results, in a checkout."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print a line for each figure, as CSV.")
    ] = False,
    no_report: Annotated[
        bool, typer.Option("--no-report", help="Draw no figures, write no report folder.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Print a table of the papers, our results beside theirs.

    Finished results come with the package; nothing is trained unless it is asked for. What was
    not run is blank. Finished cells are never run twice.
    """
    from suffice.cli.compare_options import number_of_heads, words
    from suffice.cli.reproduce_more import Asked
    from suffice.cli.terminal import given
    from suffice.papers.jobs import Execution

    asked = Asked(
        table=table,
        run=run,
        heads=None if heads is None else tuple(map(number_of_heads, words(heads))),
        seeds=seeds,
        scale=scale,
        rerun=rerun,
        out=out,
        data=data,
        publish=publish,
        as_json=as_json,
        as_csv=as_csv,
        report=not no_report,
        command=given(),
        threads=threads,
        heal_minutes=heal_minutes,
        means=Execution(
            jobs=jobs,
            threads=1 if threads is None else threads,
            minutes=max_minutes,
            engine=engine,
            address=address,
            quiet=quiet,
        ),
    )
    try:
        answer(asked, Console(stderr=True))
    except KeyboardInterrupt as interrupt:
        told = "\ninterrupted. Finished cells are kept; the same command goes on."
        raise Stopped(told, code=INTERRUPTED) from interrupt


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
        content = gather(request.plan, request.folder, list(request.finished), request.published)
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
    console_of().print(rich_table(sheet))


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
    from suffice.papers.flops import flops

    folder = asked.out or FOLDER / "flops"
    flops(folder, console_of())
    say(f"figures: {folder}")


def _evidence(asked: Asked, console: Console) -> None:
    """Print what was found about each claim of the papers; --publish writes docs/evidence.md."""
    from suffice.papers.evidence import page, write_page

    if asked.publish:
        console.print(f"written: {write_page()}", markup=False, soft_wrap=True)
    else:
        sys.stdout.write(page())


def _hellaswag(asked: Asked, console: Console) -> None:
    """Print HellaSwag of the language models."""
    from suffice.cli.reproduce_more import hellaswag

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
