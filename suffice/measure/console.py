"""What a comparison prints while it runs: its data, the seeds it needs, and its finished cells."""

from __future__ import annotations

import math
from dataclasses import replace

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from suffice.data.survey import Survey
from suffice.measure.metrics import metric_of
from suffice.measure.plan import Plan
from suffice.measure.report.page import data_facts
from suffice.measure.report.tables import accuracy_floors
from suffice.measure.resolution import Range, after_two_seeds, before_training, seeds_of
from suffice.measure.results import Cell, Results
from suffice.measure.scores import MIN_SEEDS
from suffice.measure.sentence import margin_points
from suffice.measure.sequential import USUAL
from suffice.measure.training import typical

SKEWED = 2 / 3  # share of the most frequent class from which on accuracy says little of the others
MAX_CLASSES = 12  # in a table; of more the most and the least frequent are named
MANY_CUT = 0.2  # share of cut texts from which on a longer input is proposed
MAX_ACCURACIES = 4  # of single seeds that are spelt out


def data_summary(survey: Survey, plan: Plan) -> list[str]:
    """Return what is to be known before training, a line each, of at most 80 columns or so.

    Args:
        survey: counts of the data.
        plan: the comparison.
    """
    lines = [f"data: {plan.recipe.title}", *_class_lines(survey)]
    lines += [f"{name}: {text}" for name, text in data_facts(survey)]
    if survey.cut is not None and survey.cut > MANY_CUT:
        lines.append(f"--set length={_longer(survey)} reads more of each text")
    skewed = survey.majority is not None and survey.majority >= SKEWED
    if survey.classes and skewed and plan.metric == "accuracy":
        lines.append(
            f'accuracy mostly reflects the class "{survey.majority_class}"; --metric balanced '
            "counts every class alike"
        )
    return lines + _resolution(survey, plan)


def print_data_summary(survey: Survey, plan: Plan, console: Console) -> None:
    """Print `data_summary`, cut at the width of a terminal."""
    wraps = console.is_terminal
    for line in data_summary(survey, plan):
        console.print(line, markup=False, highlight=False, soft_wrap=not wraps)


def _class_lines(survey: Survey) -> list[str]:
    parts = list(survey.rows)
    if not survey.classes:
        return ["rows: " + ", ".join(f"{count:,} {part}" for part, count in survey.rows.items())]
    if len(survey.classes) > MAX_CLASSES:
        train = dict(zip(survey.classes, survey.counts["train"], strict=True))
        most, least = max(train, key=train.__getitem__), min(train, key=train.__getitem__)
        rows = ", ".join(f"{count:,} {part}" for part, count in survey.rows.items())
        return [
            f"rows: {rows}; {len(survey.classes)} classes, in training from {train[least]:,} "
            f"({least}) to {train[most]:,} ({most})"
        ]
    first = max(len("class"), *(min(len(name), 24) for name in survey.classes))
    lines = [f"{'class':{first}} " + "".join(f"{part:>12}" for part in parts)]
    for number, name in enumerate(survey.classes):
        shares = [survey.counts[part][number] for part in parts]
        lines.append(f"{name[:24]:{first}} " + "".join(f"{count:>12,}" for count in shares))
    lines.append(f"{'rows':{first}} " + "".join(f"{survey.rows[part]:>12,}" for part in parts))
    absent = [
        f"{name} has none in {part}"
        for part in parts
        for name, count in zip(survey.classes, survey.counts[part], strict=True)
        if count == 0
    ]
    if absent:
        lines.append(f"classes without rows: {', '.join(absent[:4])}")
    return lines


def _longer(survey: Survey) -> int:
    return 2 ** math.ceil(math.log2(1.5 * max(survey.median or 1, survey.read or 1)))


def _resolution(survey: Survey, plan: Plan) -> list[str]:
    if not survey.classes:
        return []
    lines = []
    if plan.seeds < MIN_SEEDS:
        few = "1 seed gives" if plan.seeds == 1 else f"{plan.seeds} seeds give"
        lines.append(f"{few} no verdict; {USUAL} can")
    if plan.metric != "accuracy":  # what a row is worth in another metric is known from answers
        return lines
    rows = survey.tested or survey.rows["test"]
    lines.insert(
        0,
        f"one point of accuracy is {survey.rows_of_a_point:.3g} test rows; the margin of "
        f"{margin_points(plan.margin)} is {plan.margin * rows:.3g}",
    )
    margins, source = before_training(survey, plan)
    resolved = _resolved(margins, plan, f"{rows:,} test rows")
    return [*lines, f"{resolved} ({source}); two seeds will tell more"]


def _resolved(margins: Range, plan: Plan, rows: str) -> str:
    metric, margin = metric_of(plan.metric), plan.margin
    low, high = (metric.margin(float(f"{end:.2g}")) for end in margins)
    samples = f"{seeds_of(plan)} seeds" + (f" and {rows}" if rows else "")
    text = (
        f"{samples} resolve a margin of {low} to {metric.in_unit(high)} between equal mechanisms: "
        f"{metric.margin(margin)}"
    )
    if margin >= margins[1]:
        return f"{text} is enough"
    if margin >= margins[0]:
        return f"{text} is within that range"
    if not margin:
        return f"{text} cannot be shown of equal ones"
    least, most = (_rounded((end / margin) ** 2) for end in margins)
    return f"{text} takes about {least:,} to {most:,} times as many {'rows' if rows else 'seeds'}"


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


class LiveTable:
    """Finished cells by mechanism, as a table of 80 columns at most.

    Args:
        plan: the comparison.
        results: its cells that were finished before.
    """

    def __init__(self, plan: Plan, results: Results) -> None:
        self.plan, self.results = plan, results
        self.closed: set[tuple[str, int]] = set()  # pairs that get no further seed

    def add(self, cell: Cell) -> str:
        """Enter a finished cell, and return it as one line."""
        self.results = replace(self.results, cells=(*self.results.cells, cell))
        seconds = sum(epoch["seconds"] for epoch in cell.epochs)
        return (
            f"{cell.mechanism} heads {cell.num_heads} seed {cell.seed}: test accuracy "
            f"{cell.test_accuracy:.1%}, loss {cell.test_loss:.3f}, best epoch {cell.best_epoch} of "
            f"{len(cell.epochs)}, {seconds:.0f} s"
        )

    def table(self) -> Table:
        """Return the table as it stands."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        table.add_column("mechanism", no_wrap=True, max_width=24, overflow="ellipsis")
        table.add_column("heads", justify="right")
        table.add_column("seeds", justify="right")
        table.add_column("test accuracy, seed by seed", no_wrap=True)
        table.add_column("loss", justify="right")
        table.add_column("s/epoch", justify="right")
        for mechanism, heads in self.plan.pairs:
            table.add_row(mechanism, str(heads), *self._row(mechanism, heads))
        for name, value in accuracy_floors(self.results).items():
            table.add_row(Text(name), "", "", f"{100 * value:.1f}", "", "", style="dim")
        return table

    def _row(self, mechanism: str, heads: int) -> list[str]:
        cells = self.results.select(mechanism, heads)
        closed = (mechanism, heads) in self.closed
        count = f"{len(cells)}" + ("" if closed else f"/{self.plan.seeds}")
        if not cells:
            return [count, "", "", ""]
        each = [f"{100 * cell.test_accuracy:.1f}" for cell in cells]
        if len(each) > MAX_ACCURACIES:
            each = [*each[: MAX_ACCURACIES - 1], "..", each[-1]]
        loss = sum(cell.test_loss for cell in cells) / len(cells)
        pace = typical([cell.seconds_per_epoch for cell in cells])
        return [count, " ".join(each), f"{loss:.3f}", f"{pace:.1f}"]
