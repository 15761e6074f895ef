"""`suffice verdict`: whether a difference between results of any program is real."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from suffice.cli.options import MARGIN_POINTS, JsonFlag, TablesFlag, options_from_fields
from suffice.cli.terminal import Stopped, command_line, print_json, print_text, wide_console
from suffice.errors import ConfigError
from suffice.utils.grammar import split_list

if TYPE_CHECKING:
    from suffice.comparison.external.readers import Question

KINDS = ("table", "column of scores", "comparison", "trainer", "lm-eval", "inspect")
"""Written out, so that help need not import the readers; a test compares them."""


@dataclass(frozen=True, kw_only=True)
class VerdictOptions:
    margins: Annotated[
        str | None,
        Option(
            "--margin",
            help="Largest acceptable loss: points of a share "
            f"({MARGIN_POINTS:g} by default), else the unit of the metric, or 2% of its value; "
            "acc=1,loss=0.02 for several. Units may be written: '0.5 points', '0.02 nats'.",
        ),
    ] = None
    baseline: Annotated[
        str | None, Option(help="Name to compare the others with; the first by default.")
    ] = None
    metrics: Annotated[
        str | None,
        Option(
            "--metric", help="Metrics, separated by commas; the first that all have by default."
        ),
    ] = None
    better: Annotated[
        str | None, Option(help="higher or lower, where the metric's name does not tell.")
    ] = None
    percent: Annotated[
        bool, Option("--percent", help="Scores are percentages: 91.2 is a share of 0.912.")
    ] = False
    failures: Annotated[
        float | None,
        Option(
            help="Largest acceptable rate of failed trainings, such as 0.2: suffices only with as "
            "many seeds as rule out a higher one (14 without a failure)."
        ),
    ] = None
    chance: Annotated[
        float | None, Option(help="Share that a guess gets, such as 0.25, to see what was learned.")
    ] = None
    paired: Annotated[
        bool, Option("--paired", help="Pair runs without labels of seeds in their order.")
    ] = False
    null: Annotated[
        bool,
        Option(
            "--null",
            help="The two are reruns of one thing: say whether a difference is found where there "
            "is none, and which margin they can tell.",
        ),
    ] = False
    looks: Annotated[
        str | None,
        Option(
            help="Numbers of seeds at which you look, such as 3,5,8, declared before the first; "
            "the intervals allow for all of them."
        ),
    ] = None
    kind: Annotated[
        str | None, Option(help=f"Kind of the files: {', '.join(KINDS)}; found by default.")
    ] = None
    columns: Annotated[
        str | None,
        Option(
            metavar="ROLE=NAME,...",
            help="Columns of tables by role: model, task, seed, fold, row, group, score, answer, "
            "label.",
        ),
    ] = None
    groups: Annotated[
        str | None,
        Option(
            metavar="COLUMN",
            help="Column of tables whose value says which rows belong together, such as a "
            "customer: groups, not rows, are the samples.",
        ),
    ] = None
    state: Annotated[
        Path | None, Option(help="File that keeps the looks of --looks; it is written.")
    ] = None

    def question(self) -> Question:
        from suffice.comparison.external.readers import Question, parse_columns
        from suffice.comparison.metrics import HIGHER, LOWER, Margin

        if self.better not in (None, HIGHER, LOWER):
            raise ConfigError(f"--better {self.better}: give higher or lower.")
        looks = split_list(self.looks or "")
        if not all(re.fullmatch(r"[0-9]{1,6}", seeds) for seeds in looks):
            raise ConfigError(f"--looks {self.looks}: give numbers of seeds such as 3,5,8.")
        margins = [word.rpartition("=") for word in split_list(self.margins or "")]
        parsed = {
            "metrics": split_list(self.metrics or ""),
            "margins": {metric: Margin.of(size, typed=True) for metric, _, size in margins},
            "columns": parse_columns(self.columns, self.groups),
            "looks": tuple(map(int, looks)),
        }
        fields = {name: value for name, value in vars(self).items() if name != "groups"}
        return Question(**(fields | parsed), command=command_line())


@options_from_fields
def verdict(
    results: Annotated[
        list[str],
        Argument(
            metavar="[NAME=]PATH...",
            help="Results, the baseline first: tables of seed, row and score (.csv, .tsv, .jsonl, "
            ".parquet), numbers a line, folders of lm-evaluation-harness, inspect or Trainer; or "
            "one folder of `suffice compare`.",
        ),
    ],
    asked: VerdictOptions,
    out: Annotated[Path | None, Option(help="Folder of a page with pictures; none by default.")] = (
        None
    ),
    whole: TablesFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Say whether results suffice compared with a baseline's, whatever program wrote them.

    The interval covers other seeds and other rows as far as the results have both. Exit code: 0 if
    something suffices, 10 if nothing does, 11 if that is open, 12 if there is nothing to compare
    (the baseline is not shown to have learned, or the task is too easy), 2 for bad input.
    """
    from suffice.comparison.console import WIDTH, WIDTH_OF_TABLES, document
    from suffice.comparison.external.looks import NotYetError
    from suffice.comparison.external.verdict import judge_all
    from suffice.comparison.verdict import OPEN

    try:
        judged = judge_all([parse_name(word) for word in results], asked.question())
    except NotYetError as error:
        if as_json:
            print_json(document([], OPEN, str(error), None, words={}, over_tasks=[]))
            raise typer.Exit(OPEN) from error
        raise Stopped(str(error), code=OPEN) from error
    pages = [] if out is None else judged.write(out)
    if as_json:
        print_json(judged.to_json(out))
    else:
        judged.print(wide_console(WIDTH_OF_TABLES if whole else WIDTH), whole=whole)
        for page in pages:
            print_text(f"report: {page}")
    raise typer.Exit(judged.code)


def parse_name(word: str) -> tuple[str | None, str]:
    """Return the name and the path of NAME=PATH, or the path alone.

    Example:
        >>> parse_name("new=runs/b.csv"), parse_name("runs/b.csv")
        (('new', 'runs/b.csv'), (None, 'runs/b.csv'))
    """
    name, equals, path = word.partition("=")
    if not equals or "/" in name or Path(word).exists():
        return None, word
    if not (name and path):
        raise ConfigError(f"{word}: write NAME=PATH, or the path alone.")
    return name, path
