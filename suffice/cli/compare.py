"""`suffice compare`: train and measure mechanisms side by side, and say which one suffices."""

from __future__ import annotations

import re
import shlex
import webbrowser
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from typer import Exit, Option
from typer.core import TyperCommand

from suffice.cli import options
from suffice.cli.options import (
    BASELINE,
    DEVICE,
    MARGIN_POINTS,
    MECHANISMS,
    RUNS,
    SEEDS,
    STARTED,
    Parsed,
    Quiet,
    options_from_fields,
    parse_settings,
    set_option,
)
from suffice.cli.terminal import (
    command_line,
    is_torchrun,
    print_json,
    print_text,
    resumable,
    wide_console,
)
from suffice.errors import ConfigError, check_known
from suffice.utils.grammar import parse_cells, split_list

if TYPE_CHECKING:
    from suffice.comparison.compare import OwnComparison
    from suffice.comparison.jobs import Execution
    from suffice.comparison.metrics import Margin
    from suffice.comparison.plan import Plan, SavedPlan
    from suffice.train.recipes import Recipe

TASK = "digits"
MOST = 12  # seeds of --seeds auto
TASKS = (
    "digits, mnist, cifar100, cifar10_jpeg, tiny_imagenet_100, image_folder, imdb, amazon, "
    "womens_clothing, translation_es or table (your own) are real; mqar, induction, copy, two_hop "
    "and passkey are synthetic"
)


PANELS = {
    "Data": "task data columns groups test validation folds stratify drop_missing encoding "
    "tokenizer recipe scale",
    "Mechanisms": "mechanisms heads start baseline metric margin cost",
    "Training": "seeds epochs length settings tune anyway device",
    "Cluster": "cells jobs threads engine address",
}
"""Options by the section of the help that lists them; the last section has the others."""
EXAMPLES = (
    "--task digits",
    "--data reviews.csv --mechanisms standard,linear",
    "--task imdb --seeds auto --out runs/imdb",
)


class Command(TyperCommand):
    """Lists its options by panel, and examples at the end."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels = {name: panel for panel, names in PANELS.items() for name in names.split()}
        for panel in (*PANELS, "Output"):
            shown = [p for p in self.get_params(ctx) if panels.get(p.name, "Output") == panel]
            with formatter.section(panel):
                formatter.write_dl([option.get_help_record(ctx) for option in shown])
        with formatter.section("Examples"):
            for words in EXAMPLES:
                formatter.write(f"  suffice compare {words}\n")


def parse_seeds(text: str) -> tuple[int, bool]:
    """Return a number of seeds, and whether it is the most of a number still to be found.

    Example:
        >>> parse_seeds("5"), parse_seeds("auto:20")
        ((5, False), (20, True))
    """
    match = re.fullmatch(r"auto(?::([0-9]{1,6}))?|(-?[0-9]{1,6})", text)
    if match is None:
        raise ConfigError(f"--seeds {text}: give a number such as 5, auto, or auto:20.")
    if match[2] is not None:
        return int(match[2]), False
    return int(match[1] or MOST), True


def parse_tune(text: str) -> int:
    """Return how many learning rates lr:N asks for."""
    match = re.fullmatch(r"lr:([0-9]{1,6})", text)
    if match is None:
        raise ConfigError(f"--tune {text}: give lr and 3, 5, 7 or 9 rates to try, such as lr:5.")
    return int(match[1])


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


def parse_margin(text: str) -> Margin:
    from suffice.comparison.metrics import Margin

    return Margin.of(text, typed=True)


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """What is compared; None where an option is not given."""

    task: Annotated[
        str | None,
        Option(
            help=f"Data set: {TASKS}; {TASK} by default.",
            **options.known("task", "suffice.train.recipes", "TASK_RECIPES"),
        ),
    ] = None
    recipe: Annotated[
        str | None,
        Option(
            help="Recipe, instead of the task's own.",
            **options.known("recipe", "suffice.train.recipes", "recipe_names"),
        ),
    ] = None
    scale: Annotated[
        str | None,
        Option(
            help="paper (default) for the recipe's own sizes, or small: the same code in minutes "
            "on two cores; its results are marked as small everywhere.",
            **options.known("scale", "suffice.train.recipes", "SCALES"),
        ),
    ] = None
    data: Annotated[
        str | None,
        Option(
            help="Your own data: a table of texts and classes (.csv, .tsv, .jsonl, .parquet, "
            "hf:ORG/NAME or a folder of datasets.save_to_disk), or a folder with a folder of "
            "images for each class, unless a task is named; JSON lines for amazon, PATH.en and "
            "PATH.es for translation_es, a folder for imagenet_v2.",
            callback=options.existing_data,
        ),
    ] = None
    columns: Annotated[
        str | None,
        Option(
            help="Columns of a table: texts, then classes; text,label by default. A name may hold "
            "commas."
        ),
    ] = None
    groups: Annotated[
        str | None,
        Option(
            help="Column of a table whose value says which rows belong together, such as a "
            "customer: they are in one part, or in one fold."
        ),
    ] = None
    test: Annotated[
        str | None,
        Option(
            help="Table for the test with the same columns, or a share of the rows such as 0.2; "
            "0.1 by default."
        ),
    ] = None
    validation: Annotated[
        str | None, Option(help="Table or share for the choice of weights; 0.1 by default.")
    ] = None
    stratify: Annotated[
        bool | None,
        Option(
            help="Give every part of a table the same share of each class, or cut it by the texts "
            "alone; --stratify by default."
        ),
    ] = None
    drop_missing: Annotated[
        bool | None,
        Option("--drop-missing", help="Leave out rows of a table without a text or a class."),
    ] = None
    encoding: Annotated[
        str | None,
        Option(help="Encoding of a .csv, .tsv or .jsonl, such as latin-1; utf-8 by default."),
    ] = None
    tokenizer: Annotated[
        str | None,
        Option(
            help="How the texts of a table are cut: words (default), characters, bpe, or the "
            "folder of a tokenizer; characters where most texts are one long word."
        ),
    ] = None
    start: Annotated[
        str | None,
        Option(
            help="Encoder of transformers, such as a BERT (a folder or hf:ORG/NAME), whose "
            "weights and tokenizer each training on a table starts from, for mechanisms that keep "
            f"its maps; {STARTED} by default."
        ),
    ] = None
    mechanisms: Annotated[
        tuple[str, ...] | None,
        Option(
            help="Names, separated by commas, with changes if wanted: standard+window:16, "
            f"efficient+kv:1, linear+softmax:2; {MECHANISMS} by default.",
            **options.A_MECHANISM,
        ),
        Parsed(split_list),
    ] = None
    heads: Annotated[
        tuple[int, ...] | None,
        Option(help="Numbers such as 1,2,4; the recipe's by default."),
        Parsed(parse_heads),
    ] = None
    seeds: Annotated[
        tuple[int, bool] | None,
        Option(
            help=f"Training runs of each mechanism; {SEEDS} by default. auto adds seeds where the "
            f"verdict is open, up to {MOST}, or auto:20 up to 20; the intervals allow for it."
        ),
        Parsed(parse_seeds),
    ] = None
    folds: Annotated[
        int | None,
        Option(
            help="Parts of a table, each tested by a seed that trains on the others; as many as "
            "seeds for tables below 20,000 rows, 0 tests all seeds on one part."
        ),
    ] = None
    tune: Annotated[
        int | None,
        Option(
            metavar="lr:N",
            help="Before the comparison, choose the learning rate of each mechanism among N (3, 5, "
            "7 or 9) around the recipe's, by validation loss on two further seeds; lr:5 costs ten "
            "more trainings of each.",
        ),
        Parsed(parse_tune),
    ] = None
    metric: Annotated[
        str | None,
        Option(
            help="What the verdict is about: accuracy (default), balanced, macro-f1, log-loss, "
            "perplexity (default of language models) or bleu.",
            **options.known("metric", "suffice.comparison.metrics", "METRICS"),
        ),
    ] = None
    epochs: Annotated[
        int | None, Option(help="Epochs of each training; the recipe's by default.")
    ] = None
    length: Annotated[int | None, Option(help="Tokens of a text; the recipe's by default.")] = None
    margin: Annotated[
        Any,
        Option(
            help=f"Largest acceptable loss: points ({MARGIN_POINTS:g} by default), hundredths of a "
            "nat for log-loss, percent for perplexity; or with a unit: 1%, '0.02 nats'."
        ),
        Parsed(parse_margin),
    ] = None
    baseline: Annotated[
        str | None,
        Option(
            help=f"Mechanism to compare the others with; {BASELINE} by default, or the first if "
            "that is not among them."
        ),
    ] = None
    device: Annotated[str | None, Option(help=f"cpu or cuda; {DEVICE} by default.")] = None
    settings: Annotated[
        dict[str, Any] | None,
        set_option(
            "Another size or hyper-parameter of the recipe, such as length=128, d_model=128, "
            "depth=4, batch_size=32, learning_rate=3e-4, optimiser=muon; repeatable."
        ),
        Parsed(partial(parse_settings, options={}), list[str] | None),
    ] = field(default=None, hash=False)

    def plan(self, saved: SavedPlan | None = None) -> Plan:
        from suffice.comparison.metrics import METRICS
        from suffice.comparison.plan import MARGIN, Plan, check_several
        from suffice.train.recipes.own_data import usual_folds

        recipe = self._recipe(saved)
        mechanisms = split_list(MECHANISMS if self.start is None else STARTED)
        if self.mechanisms is not None:
            mechanisms = self.mechanisms
        plan: dict[str, Any] = {
            "mechanisms": mechanisms,
            "heads": (recipe.num_heads,),
            "seeds": SEEDS,
            "auto": False,
            "metric": recipe.usual_metric,
            "baseline": BASELINE if BASELINE in mechanisms else (mechanisms or ("",))[0],
            "margin": MARGIN,
            "device": DEVICE,
            "tune": None,
            "folds": None,
        }
        if saved is not None:
            plan = {name: getattr(saved, name) for name in plan}
        names = ("mechanisms", "heads", "tune", "metric", "baseline", "device")
        plan |= {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.margin is not None:
            check_known("metric", plan["metric"], METRICS)
            kind = METRICS[plan["metric"]].kind
            plan["margin"], _ = self.margin.for_metric(plan["metric"], kind)
        if self.seeds is not None:
            plan["seeds"], plan["auto"] = self.seeds
        if self.folds is not None:
            plan["folds"] = self.folds or None
        elif saved is None and plan["tune"] is None:
            plan["folds"] = usual_folds(recipe, None if plan["auto"] else plan["seeds"])
        made = Plan(recipe=recipe, **plan)
        if saved is None or self.mechanisms is not None:
            check_several(made.mechanisms)
        return made

    def _recipe(self, saved: SavedPlan | None) -> Recipe:
        from suffice.data.files import is_saved_dataset
        from suffice.train.recipes import SCALES, recipe_of_task
        from suffice.train.recipes import recipe as recipe_named
        from suffice.train.recipes.own_data import PICTURES, TABLE, restored, with_settings

        stored = {} if saved is None else saved.recipe
        scale = self.scale or str(stored.get("scale", SCALES[0]))
        if self.recipe is not None:
            recipe = recipe_named(self.recipe, scale=scale)
        elif self.task is None and saved is None and self.data is not None:
            of_images = Path(self.data).is_dir() and not is_saved_dataset(self.data)
            name = PICTURES if of_images else TABLE
            recipe = recipe_named(name, scale=scale)
        elif self.task is not None or saved is None:
            recipe = recipe_of_task(self.task or TASK, scale=scale)
        else:
            recipe = recipe_named(str(stored.get("name")), scale=scale)
        if self.task not in (None, recipe.task, recipe.name):
            raise ConfigError(
                f"--recipe {self.recipe} is for task {recipe.task}, not for --task {self.task}; "
                "give one of the two."
            )
        if stored and recipe.name == stored.get("name"):
            recipe = restored(recipe, stored)
        sizes = {"epochs": self.epochs, "length": self.length}
        sizes = {name: size for name, size in sizes.items() if size is not None}
        return with_settings(self._with_data(recipe), {**(self.settings or {}), **sizes})

    def _with_data(self, recipe: Recipe) -> Recipe:
        from suffice.train.recipes.own_data import TABLE, of_user

        names = ("groups", "test", "validation", "stratify", "drop_missing", "encoding")
        parts = {name: getattr(self, name) for name in (*names, "tokenizer", "start")}
        chosen = [
            name for name, value in {"columns": self.columns, **parts}.items() if value is not None
        ]
        before = dict(recipe.task_options).get("path")
        if self.data is not None or (before is not None and chosen):
            return of_user(recipe, self.data or str(before), self.columns, **parts)
        if chosen:
            option = chosen[0].replace("_", "-")
            raise ConfigError(f"--{option}: name the table, too, with --data.")
        if recipe.task == TABLE and before is None:
            raise ConfigError("--task table: name the .csv, .tsv, .jsonl or .parquet with --data.")
        return recipe


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a comparison runs and is judged."""

    cost: Annotated[
        str, Option(help="Cost by which the cheapest is chosen: flops, latency, parameters.")
    ] = "flops"
    resume: Annotated[
        bool,
        Option(
            "--resume",
            help="Resume the comparison in --out, or the latest one. Options not given stay as "
            "they were; seeds, mechanisms and heads may be added.",
        ),
    ] = False
    cells: Annotated[
        tuple[int, int] | None,
        Option(
            metavar="I/N",
            help="Train only the I-th of N shares of the cells, for a job of a cluster; the jobs "
            "share --out, and a last call with --resume reports.",
        ),
        Parsed(partial(parse_cells, option="--cells ")),
    ] = None
    jobs: Annotated[
        int | None,
        Option(
            help="Parallel trainings; by default chosen by a short benchmark, 1 with --threads, "
            "all that fit into a cluster."
        ),
    ] = None
    threads: Annotated[
        int | None,
        Option(
            help="Threads of each cell: this machine's divided by --jobs by default, on a cluster "
            "1. Results with as many threads are the same."
        ),
    ] = None
    anyway: Annotated[
        bool,
        Option(
            "--anyway",
            help="Go on where a bag of words is as good as the first training on a table.",
        ),
    ] = False
    engine: options.EngineOption = "local"
    address: options.AddressOption = None
    quiet: Quiet = False

    def __post_init__(self) -> None:
        from suffice.comparison.verdict import COSTS

        check_known("cost", self.cost, COSTS)

    @property
    def execution(self) -> Execution | None:
        """How cells are trained side by side; None for one after the other in this process."""
        from suffice.comparison.jobs import Execution

        names = ("jobs", "threads", "engine", "address", "quiet")
        return Execution.of(**{name: getattr(self, name) for name in names})

    @property
    def measured(self) -> bool:
        """Whether a measurement chooses how many cells are trained at a time."""
        return self.jobs is None and self.threads is None and self.engine == "local"


@options_from_fields
def compare(
    choices: CompareOptions,
    *,
    out: Annotated[
        Path | None, Option(help=f"Folder of the results; a new one in {RUNS}/ by default.")
    ] = None,
    how: RunOptions,
    open_report: Annotated[
        bool, Option("--open", help="Open the report in a browser at the end.")
    ] = False,
    whole: options.TablesFlag = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Train mechanisms side by side on one task and say which cheaper one suffices.

    Every mechanism is trained with every number of heads from every seed, on the same data in the
    same order. The verdict is a non-inferiority test over paired seeds. Exit code: 0 if a cheaper
    mechanism suffices, 10 if none does, 11 if that is open, 12 if there is nothing to compare.
    """
    if how.cells is not None and out is None:
        raise ConfigError("--cells: name the folder that the jobs share with --out.")
    run = _compare(choices, latest_folder(choices) if how.resume and out is None else out, how)
    if run is None:
        return
    if as_json:
        print_json(_record(run))
    else:
        from suffice.comparison.console import WIDTH, WIDTH_OF_TABLES, print_report

        console = wide_console(WIDTH_OF_TABLES if whole else WIDTH)
        print_report(run.results, run.verdict, console, folder=run.folder, whole=whole)
    if open_report:
        webbrowser.open(run.page.resolve().as_uri())
    raise Exit(run.verdict.code)


def _compare(choices: CompareOptions, folder: Path | None, how: RunOptions) -> OwnComparison | None:
    from suffice.comparison.plan import FILE, read_plan

    if is_torchrun():
        raise ConfigError(
            "compare trains its cells in processes of its own: give --jobs N, --cells I/N or "
            "--engine ray in place of torchrun, which is for suffice train."
        )
    share = how.cells
    joining = share is not None and (folder / FILE).exists()  # another job began it
    plan = choices.plan(read_plan(folder) if joining or how.resume else None)
    from suffice.comparison.compare import OwnComparison, claim, refuse_together
    from suffice.comparison.compare import compare as run_comparison

    execution = how.execution
    refuse_together(plan, share=share, execution=execution)
    folder, shares, command = folder or new_folder(plan.recipe), share is not None, command_line()
    claim(plan, folder, resume=how.resume or shares, command=command, shared=shares)
    with resumable(folder):
        results = run_comparison(
            plan,
            folder,
            console=Console(stderr=True),
            resume=True,
            quiet=how.quiet,
            command=command,
            share=share,
            execution=execution,
            measured=how.measured,
            anyway=how.anyway,
        )
        if results is not None:
            return OwnComparison.of(results, folder, cost=how.cost)
    print_text(
        f"share {share[0]}/{share[1]} is trained; when all are, report by\n"
        f"  suffice compare --resume --out {shlex.quote(str(folder))}"
    )
    return None


def _record(run: OwnComparison) -> dict[str, Any]:
    from suffice.comparison import verdict_record
    from suffice.comparison.console import document
    from suffice.comparison.disagreements import read_disagreements
    from suffice.utils.records import encode

    record = verdict_record(run.verdict, run.results)
    return document(
        [record],
        run.verdict.code,
        record["sentence"],
        run.folder,
        results=run.results.to_json(),
        disagreements=encode([asdict(one) for one in read_disagreements(run.folder)]),
    )


def new_folder(recipe: Recipe) -> Path:
    return options.new_run(f"{recipe.name}{options.scale_suffix(recipe.scale)}")


def latest_folder(choices: CompareOptions) -> Path:
    """Return the latest comparison under runs/ of the task, recipe and scale given, if any."""
    from suffice.comparison.plan import FILE
    from suffice.train.recipes import TASK_RECIPES, recipe_of_task

    recipe = choices.recipe
    if recipe is None and choices.task is not None:
        recipe_of_task(choices.task)  # refuses an unknown task
        recipe = TASK_RECIPES[choices.task]
    return options.latest_run(recipe, choices.scale, FILE)
