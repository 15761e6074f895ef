"""`suffice compare`: train and measure mechanisms side by side, and say which one suffices."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from suffice.cli import options
from suffice.cli.options import BASELINE, DEVICE, MARGIN, MECHANISMS, RUNS, SEEDS, TASK, TASKS
from suffice.cli.terminal import again, given, telling
from suffice.errors import unknown

if TYPE_CHECKING:
    from suffice.measure import Results

REPORT_WIDTH = 100  # columns of a report that goes to a file or a pipe


def compare(
    task: Annotated[
        str | None,
        typer.Option(help=f"Data set: {TASKS}; {TASK} by default.", autocompletion=options.tasks),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Recipe by name instead of the task's own.", autocompletion=options.recipes
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            help="paper (the default) for the paper's sizes, or small: minutes on two cores by "
            "the same code, marked as such wherever its results are shown."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Your own files: a table of texts and classes (.csv, .tsv, .jsonl) unless a task "
            "is named; lines of JSON for amazon, PATH.en and PATH.es for translation_es, a folder "
            "for imagenet_v2."
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Of a table: texts, then classes; text,label by default."),
    ] = None,
    mechanisms: Annotated[
        str | None,
        typer.Option(
            help=f"Names, separated by commas; {MECHANISMS} by default.",
            autocompletion=options.mechanisms,
        ),
    ] = None,
    heads: Annotated[
        str | None, typer.Option(help="Numbers such as 1,2,4; the recipe's by default.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help=f"Trainings of each mechanism; {SEEDS} by default.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Of each training; the recipe's by default.")
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(help=f"Points of test accuracy that may be lost; {MARGIN:g} by default."),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help=f"What the others are held against; {BASELINE} by default, without it the first."
        ),
    ] = None,
    cost: Annotated[
        str, typer.Option(help="What cheapest means: flops, latency or parameters.")
    ] = "flops",
    device: Annotated[str | None, typer.Option(help=f"cpu or cuda; {DEVICE} by default.")] = None,
    out: Annotated[
        Path | None, typer.Option(help=f"Folder of the results; a new one in {RUNS}/ by default.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the comparison in --out, or with the latest one; what is not said "
            "is as it was. May ask for more seeds, mechanisms and heads.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results and the verdict as JSON, no tables.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Train mechanisms side by side on one task and say which cheaper one suffices.

    Every mechanism is trained with every number of heads from every seed, on the same data in the
    same order. The verdict is a test of non-inferiority over paired seeds.
    """
    from suffice.cli.compare_options import Asked, latest_folder, new_folder
    from suffice.measure.compare import claim
    from suffice.measure.compare import compare as run
    from suffice.measure.plan import read_plan
    from suffice.measure.processes import first, losing, shared
    from suffice.measure.verdict import COSTS
    from suffice.train import processes

    if cost not in COSTS:
        raise unknown("cost", cost, COSTS)
    asked = Asked(
        task=task,
        recipe=recipe,
        scale=scale,
        data=data,
        columns=columns,
        mechanisms=mechanisms,
        heads=heads,
        seeds=seeds,
        epochs=epochs,
        margin=margin,
        baseline=baseline,
        device=device,
    )
    folder = latest_folder(asked) if resume and out is None else out
    plan = asked.plan(read_plan(folder) if resume else None)
    with processes(plan.device) as group, losing(group):
        folder = Path(shared(group, str(folder or new_folder(plan.recipe))))
        first(group, lambda: claim(plan, folder, resume=resume))
        with telling(again(folder), folder):
            results = run(
                plan,
                folder,
                console=Console(stderr=True),
                resume=True,
                quiet=quiet,
                command=given(),
            )
            if group.is_main:
                _report(results, folder, cost, as_json=as_json)


def _report(results: Results, folder: Path, cost: str, *, as_json: bool) -> None:
    from suffice.measure import judge, verdict_record
    from suffice.measure.report import print_report, write_report
    from suffice.papers.printed import paper_rows

    paper = paper_rows(results.task, results.recipe)
    verdict = judge(results, cost=cost)
    page = write_report(results, verdict, folder, paper)
    if as_json:
        content = {**results.to_json(), "verdict": verdict_record(verdict, results)}
        sys.stdout.write(json.dumps(content, indent=1, allow_nan=False) + "\n")
        return
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, REPORT_WIDTH)
    print_report(results, verdict, console, paper)
    console.print(f"\nreport: {page}", markup=False, highlight=False, soft_wrap=True)
