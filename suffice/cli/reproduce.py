"""`suffice reproduce`: the tables and figures of the papers, ours beside theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from suffice.cli import completed
from suffice.cli.stop import INTERRUPTED, Stopped


def reproduce(
    table: Annotated[
        str | None,
        typer.Argument(
            help="Name of a table or figure; a list of them without one.",
            autocompletion=completed.tables,
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
    from suffice.cli.again import given
    from suffice.cli.asked import number_of_heads, words
    from suffice.cli.reproduced import answer
    from suffice.cli.reproducing import Asked
    from suffice.reproduce.work import Means

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
        means=Means(
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
