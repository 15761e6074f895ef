"""`suffice reproduce`: the tables and figures of the papers, ours next to theirs."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text
from typer import Argument, Option

from suffice.cli.options import (
    AddressOption,
    EngineOption,
    Quiet,
    check_at_least,
    options_from_fields,
)
from suffice.cli.terminal import (
    INTERRUPTED,
    RULED,
    Stopped,
    command_line,
    print_json,
    print_text,
    to_json,
    wide_console,
)
from suffice.errors import ConfigError, DataError, unknown
from suffice.utils.files import write_atomic
from suffice.utils.records import encode

if TYPE_CHECKING:
    from suffice.comparison.answers import Key
    from suffice.comparison.jobs import Execution
    from suffice.comparison.report.sheet import Sheet
    from suffice.data import Dataset
    from suffice_papers import maps
    from suffice_papers.request import TableRequest
    from suffice_papers.rows import CellTable
    from suffice_papers.tables import Table

RANK, SECONDS = re.compile(r" \(\d+\)$"), re.compile(r"^([\d.,]+ \w?s) \[.*\]$")
NARROWED = "A wider terminal shows more."
WIDTH = 150  # columns of a table that goes to a file or a pipe
OTHERS = {
    "flops": (
        "Equation 24 and true FLOPs",
        "v2 appendix B.2, v3 figures 2, 5, 6 and 7",
        "computed",
    ),
    "hellaswag": (
        "HellaSwag of GPT-2 124M, by both scorers",
        "v3 section 4.1",
        "stored",
    ),
    "conversion": ("Loss of converted and of healed models", "none", "from real checkpoints"),
    "evidence": ("Outcome of forty claims", "v1, v2, v3", "from all results"),
    "atlas": ("Every mechanism on every task", "none", "from 11 tables, such as atlas-imdb-300k"),
}
"""Names that do not name a table of cells: their content, its place in the papers, its command."""


def complete_tables(incomplete: str) -> list[str]:
    """Complete the name of a table or figure."""
    from suffice_papers.tables import TABLES

    return [name for name in (*TABLES, *OTHERS) if name.startswith(incomplete)]


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """The options of the command line; None where one is not given."""

    table: Annotated[
        str | None,
        Argument(
            help="Name of a table or figure; without one, list them.",
            autocompletion=complete_tables,
        ),
    ] = None
    run: Annotated[
        bool, Option("--run", help="Train what is missing; so do more --seeds or --heads.")
    ] = False
    heads: Annotated[str | None, Option(help="Numbers such as 1,4; the paper's by default.")] = None
    seeds: Annotated[int | None, Option(help="Training runs of each row; 5 by default.")] = None
    scale: Annotated[
        str | None, Option(help="paper or small; by default that of the published results.")
    ] = None
    rerun: Annotated[
        str | None,
        Option(
            metavar="MECHANISM:HEADS:SEED",
            help="Train this cell again and show it next to the finished one.",
        ),
    ] = None
    jobs: Annotated[
        int | None,
        Option(help="Cells to train at a time: 1 by default, and all that fit into a cluster."),
    ] = None
    threads: Annotated[
        int | None, Option(help="Threads of each training, 1 by default; edge timings use all.")
    ] = None
    max_minutes: Annotated[
        float | None, Option(help="Minutes after which no further cell is started.")
    ] = None
    heal_minutes: Annotated[
        float | None,
        Option(help="Minutes of healing for each row of the table conversion; 5 by default."),
    ] = None
    engine: EngineOption = "local"
    address: AddressOption = None
    out: Annotated[
        Path | None,
        Option(
            help="Working folder, may be one of suffice compare; runs/reproduce/TABLE by default."
        ),
    ] = None
    data: Annotated[
        str | None,
        Option(
            help="Your own files, with results in a folder of their own: JSON lines for amazon "
            "and scaling, PATH.en and PATH.es for translation, a folder for imagenet."
        ),
    ] = None
    publish: Annotated[
        bool,
        Option(
            "--publish",
            help="Write finished results into the package, in a checkout.",
        ),
    ] = False
    as_json: Annotated[bool, Option("--json", help="Print the table as JSON.")] = False
    as_csv: Annotated[bool, Option("--csv", help="Print a line for each value, as CSV.")] = False
    no_report: Annotated[
        bool, Option("--no-report", help="Draw no figures and write no report folder.")
    ] = False
    quiet: Quiet = False

    def __post_init__(self) -> None:
        if self.as_json and self.as_csv:
            raise ConfigError("--json and --csv are two forms of one result; give one of them.")
        check_at_least(1, seeds=self.seeds)
        _ = self.head_counts, self.execution  # refuse wrong ones before anything runs
        if self.heal_minutes is not None and self.table != "conversion":
            raise ConfigError("--heal-minutes is for the table conversion; leave it out.")
        if self.publish and self.data:
            raise ConfigError(
                "--publish writes results that anybody can train again; results on files of your "
                "own, --data, stay in their folder."
            )

    @property
    def head_counts(self) -> tuple[int, ...] | None:
        """The numbers of heads; None for the paper's."""
        from suffice.cli.compare import parse_heads

        return None if self.heads is None else parse_heads(self.heads)

    @property
    def report(self) -> bool:
        """Whether figures are drawn and a report folder is written."""
        return not self.no_report

    @property
    def execution(self) -> Execution:
        """How missing cells are trained."""
        from suffice.comparison.jobs import Execution

        return Execution(
            jobs=self.jobs,
            threads=1 if self.threads is None else self.threads,
            minutes=self.max_minutes,
            engine=self.engine,
            address=self.address,
            quiet=self.quiet,
        )

    def refuse(self, reason: str, *names: str) -> None:
        """Refuse options that a table does not have."""
        given = [f"--{name}" for name in names if getattr(self, name) not in (None, False)]
        if given:
            raise ConfigError(f"{self.table} {reason}; leave {', '.join(given)} out.")

    def request(self, table: Table, **changes: Any) -> TableRequest:
        """Return the cells of a table that these options select."""
        from suffice_papers.request import request_cells

        names = ("scale", "seeds", "data")
        chosen: dict[str, Any] = {name: getattr(self, name) for name in names}
        return request_cells(table, **{"heads": self.head_counts, **chosen, **changes})


@options_from_fields
def reproduce(options: ReproduceOptions) -> None:
    """Print a table of the papers, our results next to theirs.

    Finished results come with the package; nothing is trained without --run. What was not run is
    blank. Finished cells are never run twice.
    """
    try:
        answer(options, Console(stderr=True))
    except KeyboardInterrupt as interrupt:
        message = "\ninterrupted. Finished cells are kept; the same command resumes."
        raise Stopped(message, code=INTERRUPTED) from interrupt


def answer(options: ReproduceOptions, console: Console) -> None:
    """Run the selected table or study and print the result."""
    from suffice_papers.atlas.grid import NAMES, atlas_table
    from suffice_papers.tables import TABLES

    others: dict[str, Callable[[ReproduceOptions, Console], None]] = {
        "flops": _flops,
        "hellaswag": _hellaswag,
        "conversion": _conversion,
        "evidence": _evidence,
        "atlas": _atlas,
    }
    if options.table is None:
        _list_tables()
    elif options.table in others:
        options.refuse("reads no data", "data")
        others[options.table](options, console)
    elif options.table in (*TABLES, *NAMES):
        wanted = TABLES.get(options.table) or atlas_table(options.table)
        by_kind = {"cells": _cells, "parts": _parts, "edge": _edge, "maps": _maps}
        by_kind[wanted.shows](wanted, options, console)
    else:
        raise unknown("table", options.table, (*TABLES, *OTHERS, *NAMES))


def narrowed(sheet: Sheet, width: int) -> Sheet:
    """Return a table for a narrow terminal: less and less until it fits.

    First ranks and the intervals of times go, then the columns of the training set.

    Example:
        >>> from suffice.comparison.report.sheet import Line, Sheet
        >>> line = Line(cells=("standard", "3.78 s [3.02 s, 4.68 s] (2)"))
        >>> narrowed(Sheet(title="t", columns=("name", "epoch"), lines=(line,)), 20).lines[0].cells
        ('standard', '3.78 s')
    """
    from suffice.comparison.report.sheet import rich_table

    def fits(shown: Sheet) -> bool:
        return Console(width=10_000).measure(rich_table(shown)).maximum <= width

    if fits(sheet):
        return sheet
    lines = [
        replace(line, cells=tuple(SECONDS.sub(r"\1", RANK.sub("", cell)) for cell in line.cells))
        for line in sheet.lines
    ]
    sheet = replace(sheet, lines=tuple(lines), caption=f"{sheet.caption} {NARROWED}".strip())
    kept = [n for n, name in enumerate(sheet.columns) if not name.startswith("train ")]
    if fits(sheet) or len(kept) == len(sheet.columns):
        return sheet
    lines = [replace(line, cells=tuple(line.cells[n] for n in kept)) for line in lines]
    return replace(sheet, columns=tuple(sheet.columns[n] for n in kept), lines=tuple(lines))


def _print_result(
    options: ReproduceOptions, records: Any, csv: Callable[[], str], sheets: Sequence[Sheet]
) -> bool:
    from suffice.comparison.report.sheet import rich_table

    if options.as_json:
        print_json(records)
    elif options.as_csv:
        sys.stdout.write(csv())
    else:
        console = wide_console(WIDTH)
        for sheet in sheets:
            console.print(rich_table(narrowed(sheet, console.width)))
            console.print()
    return not (options.as_json or options.as_csv)


def _list_tables() -> None:
    from suffice_papers.tables import TABLES

    grid = RichTable(**RULED)
    for column in ("table", "shows", "in the paper", "finished"):
        grid.add_column(Text(column), no_wrap=column == "table")
    for name, known in TABLES.items():
        grid.add_row(*map(Text, (name, known.headline, known.source, _finished_share(known))))
    for name, columns in OTHERS.items():
        grid.add_row(Text(name), *map(Text, columns))
    wide_console(WIDTH).print(grid)


def _finished_share(known: Table) -> str:
    from suffice_papers import edge
    from suffice_papers.request import FOLDER, request_cells

    if known.shows in ("parts", "maps"):
        return "from " + ", ".join(known.parts)
    if known.shows == "edge":
        keys = edge.wanted(known)
        groups = edge.finished(known, FOLDER / known.store, keys).groups
        return f"{len(groups)} of {len(keys)} groups"
    request = request_cells(known)
    cells = len(request.plan.cells)
    return f"{cells - len(request.missing)} of {cells} cells, scale {request.recipe.scale}"


def _cells(wanted: Table, options: ReproduceOptions, console: Console) -> None:
    from suffice.comparison.report.sheet import rich_table
    from suffice_papers.atlas.training import with_rates
    from suffice_papers.request import retrain
    from suffice_papers.results import gather, publish
    from suffice_papers.rows import cell_table

    request = options.request(wanted, out=options.out)
    if wanted.tuned_on:
        options.refuse("is of the atlas, whose rates and seeds are its own", "rerun", "heads")
        request = with_rates(request)
    if options.rerun is not None:
        key, command = parse_cell(options.rerun), command_line()
        sheet = retrain(request, key, options.execution, console=console, command=command)
        console = wide_console(WIDTH)
        console.print(rich_table(narrowed(sheet, console.width)))
        return
    request = _train_missing(request, options, console)
    if options.publish:
        finished = list(request.finished)
        data = _data_of(request, options, console)
        content = gather(
            request.plan, request.folder, finished, request.published, data, request.tuned
        )
        print_text(f"published: {publish(wanted, content)}", console)
    _print_cells(wanted, [cell_table(request)], options)


def _data_of(request: TableRequest, options: ReproduceOptions, console: Console) -> Dataset | None:
    from suffice.data import load

    task, task_options = request.recipe.task, dict(request.recipe.task_options)
    try:
        return load(task, console=None if options.execution.quiet else console, **task_options)
    except DataError as error:
        kept = "as before" if request.published and request.published.results.data else "unknown"
        print_text(f"what learning nothing scores stays {kept}: {error}", console)
        return None


def _parts(wanted: Table, options: ReproduceOptions, console: Console) -> None:
    from suffice_papers.rows import cell_table

    options.refuse(f"is made of {', '.join(wanted.parts)}", "rerun", "publish", "out")
    from suffice_papers.tables import table

    shown = []
    for part in map(table, wanted.parts):
        heads = options.head_counts or (None if wanted.figures else (max(part.heads),))
        request = options.request(part, heads=heads)
        shown.append(cell_table(_train_missing(request, options, console)))
    _print_cells(wanted, shown, options)


def _train_missing(
    request: TableRequest, options: ReproduceOptions, console: Console
) -> TableRequest:
    if not request.missing or not (options.run or options.head_counts or options.seeds):
        return request
    if request.table.tuned_on:
        from suffice_papers.atlas.training import train as train_atlas

        return train_atlas(request, options.execution, console=console, command=command_line())
    _train(request, request.missing, options, console)
    return request.again()


def _train(
    request: TableRequest, keys: Sequence[Key], options: ReproduceOptions, console: Console
) -> None:
    from suffice_papers.folder import run_cells

    plan, folder, command = request.plan, request.folder, command_line()
    run_cells(plan, keys, folder, options.execution, console=console, command=command)


def parse_cell(text: str) -> Key:
    """Return the cell that MECHANISM:HEADS:SEED names.

    Example:
        >>> parse_cell("standard:4:0")
        ('standard', 4, 0)
    """
    match = re.fullmatch(r"(.+):([0-9]{1,6}):([0-9]{1,9})", text)  # seeds have 32 bits
    if match is None:
        raise ConfigError(
            f"--rerun {text!r} is not a cell; give MECHANISM:HEADS:SEED, such as standard:4:0."
        )
    return match[1], int(match[2]), int(match[3])


def _print_cells(wanted: Table, shown: list[CellTable], options: ReproduceOptions) -> None:
    from suffice_papers.figures import write_report
    from suffice_papers.request import FOLDER
    from suffice_papers.rows import to_csv

    if options.report:
        default = shown[0].request.folder if options.data else FOLDER / wanted.name
        folder = write_report(wanted, shown, (options.out or default) / "report")
    records = [part.to_json() for part in shown]
    sheets = [part.sheet() for part in shown]
    if _print_result(options, records, lambda: to_csv(shown), sheets):
        if any(part.request.missing for part in shown):
            data = f" --data {shlex.quote(options.data)}" if options.data else ""
            print_text(f"Blank values were not run: suffice reproduce {wanted.name}{data} --run")
        if options.report:
            print_text(f"report: {folder}")


def _edge(wanted: Table, options: ReproduceOptions, console: Console) -> None:
    from suffice.utils.torch_compat import threads as use_threads
    from suffice_papers import edge
    from suffice_papers.figures import save
    from suffice_papers.request import FOLDER

    options.refuse(
        "times models that were not trained (to time again, choose another folder with --out)",
        *("seeds", "rerun", "scale", "data"),
    )
    keys = edge.wanted(wanted, options.head_counts)
    folder = options.out or FOLDER / wanted.store
    if options.run:
        use_threads(options.threads)
        edge.run_edge(wanted, folder, keys, console=None if options.execution.quiet else console)
    result = edge.finished(wanted, folder, keys)
    done = {(group.timed[0].recipe, group.timed[0].num_heads) for group in result.groups}
    if options.publish:
        print_text(f"published: {edge.publish_edge(wanted, result)}", console)
    missing = [key for key in keys if key not in done]
    records = edge.records(wanted, result)
    sheet = edge.edge_sheet(wanted, result, missing)
    if _print_result(options, records, lambda: edge.to_csv(wanted, result), [sheet]) and missing:
        print_text(f"Missing values were not timed: suffice reproduce {wanted.name} --run")
    if options.report and result.groups:
        save(edge.latency_bars(wanted, result), folder / "report" / "latency")
        print_text(f"report: {folder / 'report'}", console)


def _maps(wanted: Table, options: ReproduceOptions, console: Console) -> None:
    from suffice_papers import maps

    options.refuse("shows one model of each mechanism, of seed 0", *("seeds", "rerun", "publish"))
    if options.out and len(wanted.parts) > 1:
        names = (f"{wanted.name}-{part.partition('-')[2]}" for part in wanted.parts)
        raise ConfigError(
            f"--out is the working folder of one table; give it with one of {', '.join(names)}."
        )
    from suffice_papers.tables import table

    shown: list[list[maps.ModelMaps]] = []
    missing: list[tuple[TableRequest, Key]] = []
    for part in map(table, wanted.parts):
        request = maps.request_maps(
            part, scale=options.scale, heads=options.head_counts, out=options.out, data=options.data
        )
        shown.append(_maps_of(request, options, console))
        missing += [(request, key) for key in maps.missing_weights(request)]
    shown = [part for part in shown if part]
    if not shown:
        folders = sorted({str(request.folder) for request, _ in missing})
        scales = sorted({request.recipe.scale for request, _ in missing})
        raise ConfigError(
            f"there are no trained weights in {', '.join(folders)}; train them: suffice reproduce "
            f"{wanted.name} --scale {'/'.join(scales)} --run"
        )
    _print_maps(wanted, shown, options)
    if missing and not (options.as_json or options.as_csv):
        names = ", ".join(f"{key[0]} of {request.table.name}" for request, key in missing)
        print_text(f"There are no weights of {names}: suffice reproduce {wanted.name} --run")


def _maps_of(
    request: TableRequest, options: ReproduceOptions, console: Console
) -> list[maps.ModelMaps]:
    from suffice.data import load
    from suffice_papers import maps

    if options.run and (keys := maps.missing_weights(request)):
        _train(request, keys, options, console)
    missing = maps.missing_weights(request)
    keys = [key for key in request.plan.cells if key not in missing]
    if not keys:
        return []
    task, task_options = request.recipe.task, dict(request.recipe.task_options)
    dataset = load(task, console=None if options.execution.quiet else console, **task_options)
    return [maps.attention_maps(request, key, dataset) for key in keys]


def _print_maps(
    wanted: Table, shown: list[list[maps.ModelMaps]], options: ReproduceOptions
) -> None:
    from suffice_papers import maps
    from suffice_papers.figures import save
    from suffice_papers.request import FOLDER

    every = [each for part in shown for each in part]
    default = every[0].request.folder if options.data else FOLDER / wanted.name
    folder = (options.out or default) / "report"
    records = maps.maps_records(every)
    if options.report:
        write_atomic(folder / "maps.json", to_json(records))
        write_atomic(folder / "maps.csv", maps.maps_csv(every))
        for each in every:
            mechanism, heads, _ = each.key
            scale = each.request.recipe.scale
            name = f"maps-{each.request.table.name}-{scale}-{mechanism}-h{heads}"
            save(maps.maps_figure(each), folder / name)
    sheets = map(maps.maps_sheet, shown)
    as_tables = _print_result(options, records, lambda: maps.maps_csv(every), list(sheets))
    if as_tables and options.report:
        print_text(f"report: {folder}")


def _flops(options: ReproduceOptions, console: Console) -> None:  # noqa: ARG001 - called by name
    from suffice_papers.flops import flops
    from suffice_papers.request import FOLDER

    folder = options.out or FOLDER / "flops"
    flops(folder, wide_console(WIDTH))
    print_text(f"figures: {folder}")


def _evidence(options: ReproduceOptions, console: Console) -> None:
    from suffice_papers.evidence import page, write_page

    if options.publish:
        print_text(f"written: {write_page()}", console)
    else:
        sys.stdout.write(page())


def _atlas(options: ReproduceOptions, console: Console) -> None:
    from suffice_papers import advice
    from suffice_papers.atlas import page
    from suffice_papers.atlas.standings import standings

    options.refuse(
        "is made of its tables; train one of them, such as atlas-imdb-300k",
        *("run", "seeds", "heads", "scale", "rerun", "out", "as_csv"),
    )
    if options.publish:
        print_text(f"written: {page.write_page()} and {advice.write()}", console)
        return
    records = [asdict(row) for row in standings()]
    sheets = [page.progress_sheet(), page.matrix(), page.staircase()]
    _print_result(options, records, str, sheets)


def _conversion(options: ReproduceOptions, console: Console) -> None:
    from suffice.utils.torch_compat import threads as use_threads
    from suffice_papers import conversion
    from suffice_papers.request import FOLDER

    options.refuse(
        "has fixed settings (to convert again, choose another folder with --out)",
        *("seeds", "heads", "scale", "rerun"),
    )
    keys, folder = conversion.wanted(), options.out or FOLDER / "conversion"
    if options.run:
        use_threads(options.threads)
        default = conversion.MINUTES
        conversion.run(
            folder,
            keys,
            minutes=default if options.heal_minutes is None else options.heal_minutes,
            limit=options.execution.minutes,
            console=console,
            quiet=options.execution.quiet,
        )
    result = conversion.finished(folder, keys)
    if options.publish:
        print_text(f"published: {conversion.publish(result)}", console)
    records = encode(asdict(result))
    as_tables = _print_result(
        options, records, lambda: conversion.to_csv(result), [conversion.sheet(result)]
    )
    if as_tables and len(result.rows) < len(keys):
        print_text("Missing values were not run: suffice reproduce conversion --run")


def _hellaswag(options: ReproduceOptions, console: Console) -> None:  # noqa: ARG001
    from suffice_papers import hellaswag

    reason = "is stored: models are trained by suffice train and scored by lm_eval"
    options.refuse(reason, "heads", "seeds", "rerun", "run", "publish", "data", "out")
    scores = [one for one in hellaswag.published_scores() if options.scale in (None, one.scale)]
    _print_result(
        options,
        [asdict(score) for score in scores],
        lambda: hellaswag.scores_csv(scores),
        [hellaswag.scores_sheet(scores, options.scale or "small")],
    )
