"""`suffice compare`: train and measure mechanisms side by side, and say which one suffices."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from typer import Option

from suffice.cli import options
from suffice.cli.options import BASELINE, DEVICE, MECHANISMS, RUNS, SEEDS, Quiet
from suffice.cli.terminal import command_line, print_json, print_text, resumable, wide_console
from suffice.errors import ConfigError, DataError, unknown
from suffice.files import flatten
from suffice.grammar import split_list
from suffice.measure import Results, judge, report, verdict_record
from suffice.measure.compare import claim
from suffice.measure.compare import compare as run_comparison
from suffice.measure.plan import FILE, MARGIN, Plan, SavedPlan, read_plan
from suffice.measure.processes import first, losing, shared
from suffice.measure.verdict import COSTS
from suffice.papers.printed import paper_rows
from suffice.recipes import TASK_RECIPES, Recipe, recipe_of_task
from suffice.recipes import recipe as recipe_named
from suffice.recipes.own_data import TABLE, of_user
from suffice.train import processes

TASK = "digits"
TASKS = (
    "digits, mnist, cifar100, cifar10_jpeg, tiny_imagenet_100, image_folder, imdb, amazon, "
    "womens_clothing, translation_es or table (your own) are real; mqar, induction, copy, two_hop "
    "and passkey are synthetic"
)
REPORT_WIDTH = 100  # columns of a report that goes to a file or a pipe


def compare(
    task: Annotated[
        str | None,
        Option(
            help=f"Data set: {TASKS}; {TASK} by default.", autocompletion=options.complete_tasks
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        Option(help="Recipe, instead of the task's own.", autocompletion=options.complete_recipes),
    ] = None,
    scale: Annotated[
        str | None,
        Option(
            help="paper (default) for the paper's sizes, or small: the same code in minutes on two "
            "cores; its results are marked as small everywhere."
        ),
    ] = None,
    data: Annotated[
        str | None,
        Option(
            help="Your own files: a table of texts and classes (.csv, .tsv, .jsonl) unless a task "
            "is named; JSON lines for amazon, PATH.en and PATH.es for translation_es, a folder for "
            "imagenet_v2."
        ),
    ] = None,
    columns: Annotated[
        str | None, Option(help="Columns of a table: texts, then classes; text,label by default.")
    ] = None,
    mechanisms: Annotated[
        str | None,
        Option(
            help=f"Names, separated by commas; {MECHANISMS} by default.",
            autocompletion=options.complete_mechanisms,
        ),
    ] = None,
    heads: Annotated[
        str | None, Option(help="Numbers such as 1,2,4; the recipe's by default.")
    ] = None,
    seeds: Annotated[
        int | None, Option(help=f"Training runs of each mechanism; {SEEDS} by default.")
    ] = None,
    epochs: Annotated[
        int | None, Option(help="Epochs of each training; the recipe's by default.")
    ] = None,
    margin: Annotated[
        float | None,
        Option(help=f"Points of test accuracy that may be lost; {100 * MARGIN:g} by default."),
    ] = None,
    baseline: Annotated[
        str | None,
        Option(
            help=f"Mechanism to compare the others with; {BASELINE} by default, or the first if "
            "that is not among them."
        ),
    ] = None,
    cost: Annotated[
        str, Option(help="Cost by which the cheapest is chosen: flops, latency, parameters.")
    ] = "flops",
    device: Annotated[str | None, Option(help=f"cpu or cuda; {DEVICE} by default.")] = None,
    out: Annotated[
        Path | None, Option(help=f"Folder of the results; a new one in {RUNS}/ by default.")
    ] = None,
    resume: Annotated[
        bool,
        Option(
            "--resume",
            help="Resume the comparison in --out, or the latest one. Options not given stay as "
            "they were; seeds, mechanisms and heads may be added.",
        ),
    ] = False,
    as_json: Annotated[
        bool, Option("--json", help="Print results and verdict as JSON instead of tables.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train mechanisms side by side on one task and say which cheaper one suffices.

    Every mechanism is trained with every number of heads from every seed, on the same data in the
    same order. The verdict is a non-inferiority test over paired seeds.
    """
    if cost not in COSTS:
        raise unknown("cost", cost, COSTS)
    choices = CompareOptions(
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
    folder = latest_folder(choices) if resume and out is None else out
    plan = choices.plan(read_plan(folder) if resume else None)
    with processes(plan.device) as group, losing(group):
        folder = Path(shared(group, str(folder or new_folder(plan.recipe))))
        first(group, lambda: claim(plan, folder, resume=resume))
        with resumable(folder):
            results = run_comparison(
                plan,
                folder,
                console=Console(stderr=True),
                resume=True,
                quiet=quiet,
                command=command_line(),
            )
            if group.is_main:
                _report(results, folder, cost, as_json=as_json)


def _report(results: Results, folder: Path, cost: str, *, as_json: bool) -> None:
    paper = paper_rows(results.task, results.recipe)
    verdict = judge(results, cost=cost)
    page = report.write_report(results, verdict, folder, paper)
    if as_json:
        print_json({**results.to_json(), "verdict": verdict_record(verdict, results)})
        return
    console = wide_console(REPORT_WIDTH)
    report.print_report(results, verdict, console, paper)
    print_text(f"\nreport: {page}", console)


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """The options of a comparison; None where one is not given."""

    task: str | None = None
    recipe: str | None = None
    scale: str | None = None
    mechanisms: str | None = None
    heads: str | None = None
    seeds: int | None = None
    epochs: int | None = None
    margin: float | None = None
    baseline: str | None = None
    device: str | None = None
    data: str | None = None
    columns: str | None = None

    def plan(self, saved: SavedPlan | None = None) -> Plan:
        """Return the plan."""
        recipe = self._recipe(saved)
        mechanisms = split_list(MECHANISMS if self.mechanisms is None else self.mechanisms)
        plan: dict[str, Any] = {
            "mechanisms": mechanisms,
            "heads": (recipe.num_heads,),
            "seeds": SEEDS,
            "baseline": BASELINE if BASELINE in mechanisms else (mechanisms or ("",))[0],
            "margin": MARGIN,
            "device": DEVICE,
        }
        if saved is not None:
            plan = {name: getattr(saved, name) for name in plan}
        overrides = {
            "mechanisms": None if self.mechanisms is None else mechanisms,
            "heads": None if self.heads is None else parse_heads(self.heads),
            "seeds": self.seeds,
            "baseline": self.baseline,
            "margin": None if self.margin is None else parse_margin(self.margin),
            "device": self.device,
        }
        plan |= {name: value for name, value in overrides.items() if value is not None}
        return Plan(recipe=recipe, **plan)

    def _recipe(self, saved: SavedPlan | None) -> Recipe:
        stored = {} if saved is None else saved.recipe
        scale = self.scale or str(stored.get("scale", "paper"))
        if self.recipe is not None:
            recipe = recipe_named(self.recipe, scale=scale)
        elif self.task is not None or saved is None:
            recipe = recipe_of_task(self.task or (TABLE if self.data else TASK), scale=scale)
        else:
            recipe = recipe_named(str(stored.get("name")), scale=scale)
        if self.task not in (None, recipe.task):
            raise ConfigError(
                f"--recipe {self.recipe} is for task {recipe.task}, not for --task {self.task}; "
                "give one of the two."
            )
        recipe = with_data(recipe, self.data, saved, self.columns)
        epochs = flatten(stored).get("training.epochs") if self.epochs is None else self.epochs
        if epochs is None:
            return recipe
        return replace(recipe, training=replace(recipe.training, epochs=epochs))


def with_data(
    recipe: Recipe, data: str | None, saved: SavedPlan | None, columns: str | None = None
) -> Recipe:
    """Return a recipe that reads the files at a path."""
    if saved is not None:
        stored = saved.recipe.get("task_options", ())
        try:
            task_options = dict(stored)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"the comparison's plan.json has task_options {stored!r:.60}, which are not pairs "
                "of names and values; start another comparison."
            ) from error
        data = task_options.get("path") if data is None else data
        columns = task_options.get("columns") if columns is None else columns
    if data is not None:
        return of_user(recipe, data, columns)
    if columns is not None:
        raise ConfigError(f"--columns {columns}: name the table, too, with --data.")
    if recipe.task == TABLE:
        raise ConfigError("--task table: name the .csv, .tsv or .jsonl with --data.")
    return recipe


def parse_heads(text: str) -> tuple[int, ...]:
    """Return the numbers of heads in a list.

    Example:
        >>> parse_heads("1, 4")
        (1, 4)
    """
    for word in split_list(text):
        if not re.fullmatch(r"[1-9][0-9]{0,5}", word):
            raise ConfigError(
                f"--heads {word!r} is not a list of head counts; give numbers such as 1,2,4."
            )
    return tuple(map(int, split_list(text)))


def parse_margin(points: float) -> float:
    """Return a margin in points as a fraction."""
    if not 0.0 <= points < 100.0:  # noqa: PLR2004
        raise ConfigError(
            f"--margin {points:g} is not a number of accuracy points; give at least 0 and below "
            f"100, such as {100 * MARGIN:g}."
        )
    return points / 100


def new_folder(recipe: Recipe) -> Path:
    """Return where a new comparison goes: runs/RECIPE-TIME, or runs/RECIPE-small-TIME."""
    return options.new_run(f"{recipe.name}{options.scale_suffix(recipe.scale)}")


def latest_folder(choices: CompareOptions) -> Path:
    """Return the latest comparison under runs/ of the task, recipe and scale given, if any."""
    recipe = choices.recipe
    if recipe is None and choices.task is not None:
        recipe_of_task(choices.task)  # refuses an unknown task
        recipe = TASK_RECIPES[choices.task]
    return options.latest_run(recipe, choices.scale, FILE)
