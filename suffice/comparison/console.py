"""What a comparison prints: its data, what they can decide, finished cells, and the last screen."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from suffice.comparison.answers import BAG
from suffice.comparison.metrics import metric_of
from suffice.comparison.plan import Plan
from suffice.comparison.report.sheet import DIM, Column, Line, Sheet, rich_table, sheet_of
from suffice.comparison.report.tables import Pair, interval_of, or_dash, scaled, size, tables
from suffice.comparison.resolution import Range, after_two_seeds, before_training, seeds_of
from suffice.comparison.results import Cell, Results
from suffice.comparison.scores import MIN_SEEDS, Scores, difference_of_bag
from suffice.comparison.sentence import label, notes, outcome_of, percentage, sentence
from suffice.comparison.sufficiency import FAILS, SUFFICES, UNDECIDED, USUAL
from suffice.comparison.verdict import INSUFFICIENT, SUFFICIENT, Comparison, Verdict
from suffice.comparison.winner import Snippet, model_of, snippets, why

if TYPE_CHECKING:
    from suffice.data.survey import Survey

SKEWED = 2 / 3  # share of the most frequent class from which on accuracy says little of the others
MANY_CUT = 0.2  # share of cut texts from which on a longer input is proposed
MOST_FACTS = 6  # lines about the data
WIDTH = 80  # columns of a line about the data, and of a screen that goes to a file or a pipe
WIDTH_OF_TABLES = 100  # of the whole report
MOST_LINES, MOST_NOTES = 24, 3  # of the screen that ends a comparison
FEW_ROWS = 10_000  # of training, from which a bag of words has been hard to beat from scratch
LEAST_ROWS = 3  # of its table, however long the sentence is


def data_summary(survey: Survey, plan: Plan) -> list[str]:
    lines = [f"data: {plan.recipe.title}", _rows_and_classes(survey), _baselines(survey, plan)]
    if survey.cut is not None:
        power = math.ceil(math.log2(1.5 * max(survey.median or 1, survey.read or 1)))
        longer = f": --set length={2**power}" if survey.cut > MANY_CUT else ""
        lines.append(
            f"words: median {survey.median:.0f}, most {survey.longest:,}; {survey.read} are read, "
            f"{survey.cut:.0%} of the texts are cut{longer}"
        )
    lines.append("; ".join(survey.notes))
    decides = textwrap.wrap(_resolution(survey, plan), WIDTH)
    cut = [line if len(line) <= WIDTH else f"{line[: WIDTH - 2]} …" for line in lines if line]
    return [*cut[: MOST_FACTS - len(decides)], *decides]


def figure_to_beat(plan: Plan, accuracy: float, rows: int) -> str:
    """Return what a bag of words has right of a table's test rows, and what rarely beats it."""
    text = f"to beat: a bag of words has {accuracy:.1%} of the test rows right"
    if plan.recipe.start is not None or rows > FEW_ROWS:
        return text
    advice = "--start takes a pretrained encoder"
    return f"{text};\nfrom scratch, {rows:,} training rows rarely beat it: {advice}"


def _rows_and_classes(survey: Survey) -> str:
    text = "rows: " + ", ".join(f"{count:,} {part}" for part, count in survey.rows.items())
    if not survey.classes:
        return text
    absent = [
        f"{name} has none in {part}"
        for part in survey.rows
        for name, count in zip(survey.classes, survey.counts[part], strict=True)
        if count == 0
    ]
    if absent:
        return f"{text}; {absent[0]}" + (f", and {len(absent) - 1} more" if absent[1:] else "")
    counts = survey.counts["train"]
    return f"{text}; {len(survey.classes)} classes of {min(counts):,} to {max(counts):,}"


def _baselines(survey: Survey, plan: Plan) -> str:
    parts = []
    if survey.repeated is not None and survey.overlap is not None:
        repeated, overlap = sum(survey.repeated.values()), sum(survey.overlap.values())
        parts.append(f"duplicates: {repeated:,} within splits, {overlap:,} across")
    skewed = survey.majority is not None and survey.majority >= SKEWED
    if survey.classes and skewed and plan.metric == "accuracy":
        known = [f'always "{survey.majority_class}" {survey.majority:.1%}: see --metric balanced']
    else:
        shares = {f'always "{survey.majority_class}"': survey.majority, "random": survey.chance}
        known = [f"{name} {share:.1%}" for name, share in shares.items() if share is not None]
    return "; ".join([*parts, *([", ".join(known)] if known else [])])


def _resolution(survey: Survey, plan: Plan) -> str:
    """Return which margin can be decided by the rows alone."""
    few = ""
    if plan.seeds < MIN_SEEDS:
        one = "1 seed gives" if plan.seeds == 1 else f"{plan.seeds} seeds give"
        few = f"{one} no verdict; {USUAL} can"
    if not survey.classes or plan.metric != "accuracy":
        return few  # what a row is worth in another metric is known from answers
    rows = survey.tested or survey.rows["test"]
    resolved = _resolved(before_training(survey, plan), plan, f"{rows:,} test rows")
    return f"{few}: {resolved}" if few else resolved


def _resolved(margins: Range, plan: Plan, rows: str) -> str:
    metric, margin = metric_of(plan.metric), plan.margin
    low, high = (metric.margin(float(f"{end:.2g}")) for end in margins)
    text = f"{seeds_of(plan)} seeds" + (f" on {rows}" if rows else "")
    text += f" resolve {low}–{metric.in_unit(high)}; {metric.margin(margin)}"
    if margin >= margins[1]:
        return f"{text} is enough"
    if margin >= margins[0]:
        return f"{text} lies in between"
    if not margin:
        return f"{text} cannot be shown"
    least, most = (_rounded((end / margin) ** 2) for end in margins)
    return f"{text} takes {least:,}–{most:,}x the {'rows' if rows else 'seeds'}"


def _rounded(factor: float) -> int:
    step = 10 ** max(0, math.floor(math.log10(factor)) - 1)
    return math.ceil(factor / step) * step


def seeds_needed(results: Results, plan: Plan) -> str | None:
    """Return what the planned seeds resolve, from the first two of every mechanism.

    None if there is nothing to compare, or no spread.
    """
    margins = after_two_seeds(results, plan)
    if margins is None:
        return None
    data, rows = results.data, ""
    if results.rows and data is not None:
        rows = f"{data.tested or data.rows['test']:,} test rows"
    return f"after two seeds: {_resolved(margins, plan, rows)}"


def print_report(
    results: Results,
    verdict: Verdict,
    console: Console,
    *,
    folder: Path | None = None,
    whole: bool = False,
) -> None:
    """Print the screen that ends a comparison; `whole`: all tables above it, and all notes."""
    for sheet in tables(results, verdict) if whole else ():
        console.print(rich_table(sheet))
        console.print()
    said, points = sentence(verdict, results), notes(verdict, results)
    ends = []
    if folder is not None:
        if usage := snippets(folder):
            ends = [line.plain for line in _wrapped(f"{why(folder)}:", "", console)]
            ends += [*(f"  {command}" for command in _commands(usage)), ""]
        ends.append(f"report: {folder / 'report.html'}")
    print_screen(said, summary(results, verdict), points, console, ends=ends, whole=whole)


def print_screen(
    said: str,
    sheet: Sheet,
    points: Sequence[str],
    console: Console,
    *,
    ends: Sequence[str] = (),
    whole: bool = False,
) -> None:
    """Print a sentence, a table, notes and last lines: `MOST_LINES` lines unless `whole`.

    The first rows of the table and the first notes are shown, as many as there is room for.
    """
    head = _wrapped(said, "bold", console)
    room = math.inf if whole else MOST_LINES - len(head) - 1
    room -= len(ends) + bool(ends) + sum(len(line) // (console.width + 1) for line in ends)
    where = "in the report" if ends else "with --tables"
    least = 2 + sum(len(_wrapped(f"- {point}", DIM, console)) for point in points[:1])
    shown = replace(sheet, title="", caption="")
    while len(shown.lines) > LEAST_ROWS and _height(shown, console) > room - least:
        caption = f"and {len(sheet.lines) - len(shown.lines) + 1} more {where}"
        shown = replace(shown, lines=shown.lines[:-1], caption=caption)
    room -= _height(shown, console) + 2
    below, printed = list[Text](), 0
    for point in points if whole else points[:MOST_NOTES]:
        lines = _wrapped(f"- {point}", DIM, console)
        if len(below) + len(lines) <= room:
            below, printed = below + lines, printed + 1
    if printed < len(points):
        below.append(Text(f"- more notes {where}: {len(points) - printed}", DIM))
    for part in (head, [rich_table(shown, lines=None)], below, [Text(line) for line in ends]):
        if part and part is not head:
            console.print()
        for line in part:
            console.print(line, soft_wrap=part not in (head, below) and isinstance(line, Text))


def _wrapped(text: str, style: str, console: Console) -> list[Text]:
    return [Text(line, style) for line in textwrap.wrap(text, console.width)]


def _height(sheet: Sheet, console: Console) -> int:
    return len(console.render_lines(rich_table(sheet, lines=None)))


SCHEMA, VERSION = "suffice verdict", 1  # a version adds fields; another removes or changes one


def document(
    records: Sequence[dict[str, Any]], code: int, said: str, folder: Path | None, **more: Any
) -> dict[str, Any]:
    """Return what `--json` prints, see `docs/verdict.md`; records are those of `verdict_record`."""
    usage = () if folder is None else snippets(folder)
    page = None if folder is None else folder / "report.html"
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "outcome": {SUFFICIENT: SUFFICES, INSUFFICIENT: FAILS}.get(code, UNDECIDED),
        "reason": records[0]["reason"] if len(records) == 1 else None,
        "sentence": said,
        "exit_code": code,
        "folder": None if folder is None else str(folder),
        "report": str(page) if page is not None and page.is_file() else None,
        "model": None if not usage else model_of(folder),
        "next": _commands(usage),
        "comparisons": list(records),
        **more,
    }


def _commands(usage: Sequence[Snippet]) -> list[str]:
    return [usage[0].code.splitlines()[-1], usage[-1].code] if usage else []


def summary(results: Results, verdict: Verdict) -> Sheet:
    """Return the table of the last screen: what decides, and what each mechanism costs.

    The baseline stands first, then what suffices, is undecided and does not, each by its cost.
    """
    metric, order = verdict.metric, (SUFFICES, UNDECIDED, FAILS)
    heads = {heads for _, heads in results.pairs()}
    levels = {percentage(c.confidence) for c in verdict.comparisons}
    external = results.external is not None

    def place(pair: Pair) -> tuple[Any, ...]:
        found = verdict.find(*pair)
        return (
            (-1, pair[1]) if found is None else (order.index(outcome_of(found)), found.cost.order)
        )

    def column(title: str, text: Callable[[Comparison], str], of_baseline: str = "") -> Column:
        def cell(pair: Pair) -> str:
            found = verdict.find(*pair)
            if found is None:
                return of_baseline or metric.write(verdict.qualities[pair[1]].mean)
            return text(found)

        return Column(title=title, cell=cell, words=title == "verdict")

    sheet = sheet_of(
        "",
        (
            Column(
                title="name" if external else "mechanism",
                cell=lambda pair: label(*pair) if len(heads) > 1 else pair[0],
            ),
            column(
                metric.unit if metric.kind == "share" else "difference",
                lambda c: "-" if c.difference is None else metric.difference(c.difference.mean),
            ),
            column(
                f"{min(levels)} CI" if len(levels) == 1 else "CI",
                lambda c: interval_of(c.difference, metric.difference),
                " ",
            ),
            column("verdict", outcome_of, "baseline"),
            *([] if external else _cost_columns(results)),
        ),
        sorted(results.pairs(), key=place),
    )
    bag = difference_of_bag(Scores(results, metric), min(heads)) if results.rows else None
    if bag is None:
        return sheet
    cells = BAG, metric.difference(bag.mean), interval_of(bag, metric.difference)
    line = Line(cells=(*cells, *("-",) * (len(sheet.columns) - len(cells))))
    return replace(sheet, lines=(*sheet.lines, line))


def _cost_columns(results: Results) -> list[Column]:
    cells = {pair: results.select(*pair) for pair in results.pairs()}

    def training(pair: Pair) -> float:
        times = [cell.seconds_per_epoch for cell in cells[pair]]
        return median(times[1:] or times)  # the first may warm up

    def time(pair: Pair) -> float | None:
        base = results.baseline, pair[1]
        if (ratios := results.latency_ratios(*pair)) is not None:
            return median(ratios)
        return None if results.speeds or base not in cells else training(pair) / training(base)

    columns = [
        Column(title="parameters", cell=lambda pair: scaled(cells[pair][0].parameters_model)),
        Column(title="time", cell=lambda pair: or_dash("{:.2f}x".format)(time(pair))),
    ]
    if any(cell.state_bytes for cell in results.cells):
        cache = Column(title="cache", cell=lambda pair: or_dash(size)(cells[pair][0].state_bytes))
        columns.append(cache)
    return columns


def cell_line(cell: Cell) -> str:
    seconds = sum(epoch["seconds"] for epoch in cell.epochs)
    return (
        f"{cell.mechanism} heads {cell.num_heads} seed {cell.seed}: test accuracy "
        f"{cell.test_accuracy:.1%}, loss {cell.test_loss:.3f}, best epoch {cell.best_epoch} of "
        f"{len(cell.epochs)}, {seconds:.0f} s"
    )
