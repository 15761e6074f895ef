"""`suffice compare`: train and measure mechanisms side by side, and say which one suffices."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from suffice.errors import ConfigError

RUNS = Path("runs")
MECHANISMS = "standard,optimised,efficient,super_attention"


def compare(
    task: Annotated[str | None, typer.Option(help="Data set: digits, mnist or imdb.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Recipe by name instead of the task's own.")
    ] = None,
    mechanisms: Annotated[str, typer.Option(help="Names, separated by commas.")] = MECHANISMS,
    heads: Annotated[
        str | None, typer.Option(help="Numbers of heads, separated by commas.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Trainings of each mechanism.")] = 5,
    epochs: Annotated[int | None, typer.Option(help="Instead of the recipe's.")] = None,
    margin: Annotated[
        float, typer.Option(help="Points of test accuracy that may be lost and still suffice.")
    ] = 1.0,
    baseline: Annotated[
        str | None, typer.Option(help="What the others are held against [standard].")
    ] = None,
    cost: Annotated[
        str, typer.Option(help="What cheapest means: flops, latency or parameters.")
    ] = "flops",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results [runs/RECIPE-TIME].")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with --out, or with the latest run.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print results.json, no tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Train mechanisms side by side on real data and say which cheaper one suffices.

    Every mechanism is trained with every number of heads from every seed, on the same data in the
    same order. The verdict is a test of non-inferiority over paired seeds.
    """
    from suffice.errors import unknown
    from suffice.measure.compare import compare as run
    from suffice.measure.costs import COSTS
    from suffice.train import Interrupted, current

    if cost not in COSTS:
        raise unknown("cost", cost, COSTS)
    plan = _plan(task, recipe, mechanisms, heads, seeds, epochs, margin, baseline, device)
    folder = out or _folder(plan.recipe.name, resume)
    try:
        results = run(plan, folder, console=Console(stderr=True), resume=resume, quiet=quiet)
    except Interrupted as interrupt:
        raise KeyboardInterrupt(
            f"interrupted; what was done is kept. Go on with:\n  {_again(folder)}"
        ) from interrupt
    if not current().is_main:
        return
    _report(results, folder, cost, as_json=json)


def _plan(task, recipe, mechanisms, heads, seeds, epochs, margin, baseline, device):
    from suffice.measure.plan import Plan
    from suffice.recipes import recipe as by_name
    from suffice.recipes import recipe_of_task

    if recipe is not None and task is not None and by_name(recipe).task != task:
        raise ConfigError(
            f"--recipe {recipe} is on {by_name(recipe).task}, not on --task {task}; give one of "
            "the two."
        )
    chosen = by_name(recipe) if recipe is not None else recipe_of_task(task or "digits")
    if epochs is not None:
        chosen = replace(chosen, training=replace(chosen.training, epochs=epochs))
    names = tuple(_words(mechanisms))
    return Plan(
        recipe=chosen,
        mechanisms=names,
        heads=(chosen.num_heads,) if heads is None else tuple(map(_number, _words(heads))),
        seeds=seeds,
        baseline=baseline or ("standard" if "standard" in names else (names or ("",))[0]),
        margin=margin / 100,
        device=device,
    )


def _words(listed: str) -> list[str]:
    return [word.strip() for word in listed.split(",") if word.strip()]


def _number(word: str) -> int:
    if not word.isdigit() or int(word) < 1:
        raise ConfigError(f"--heads {word!r} is not a number of heads; give such as 1,2,4.")
    return int(word)


def _folder(recipe: str, resume: bool) -> Path:
    """Return a new folder under runs/, or the latest one of this recipe to go on with."""
    if not resume:
        return RUNS / f"{recipe}-{datetime.now():%Y%m%d-%H%M%S}"
    found = sorted(RUNS.glob(f"{recipe}-*/plan.json"))
    if not found:
        raise ConfigError(
            f"there is no run of {recipe} under {RUNS}/ to resume; name its folder with --out, or "
            "start one without --resume."
        )
    return found[-1].parent


def _again(folder: Path) -> str:
    """Return the command that goes on."""
    words = [word for word in sys.argv[1:] if word != "--resume"]
    if "--out" not in words and not any(word.startswith("--out=") for word in words):
        words += ["--out", str(folder)]
    return shlex.join(["suffice", *words, "--resume"])


def _report(results, folder: Path, cost: str, *, as_json: bool) -> None:
    from suffice.measure import judge
    from suffice.measure.report import print_report, write_report

    verdict = judge(results, cost=cost)
    page = write_report(results, verdict, folder)
    if as_json:
        sys.stdout.write((folder / "results.json").read_text())
        return
    console = Console()
    print_report(results, verdict, console)
    console.print(f"\nreport: {page}", markup=False, highlight=False, soft_wrap=True)
