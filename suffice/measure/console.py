"""What a comparison prints while it runs: its data, the seeds it needs, and its finished cells."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from suffice.data.survey import Survey
from suffice.measure.metrics import metric_of
from suffice.measure.plan import Plan
from suffice.measure.report.page import data_facts
from suffice.measure.report.tables import accuracy_floors
from suffice.measure.results import Cell, Results
from suffice.measure.scores import MIN_SEEDS, Scores, difference_table
from suffice.measure.sentence import margin_points
from suffice.measure.sequential import USUAL, level
from suffice.measure.sufficiency import LEVEL
from suffice.measure.training import typical
from suffice.measure.two_way_interval import ALIKE, EXACT, ROWS_OVERLAP, Estimate

DISAGREEMENT = 0.2  # share of the rows that two trainings answer differently, until it is known
SKEWED = 2 / 3  # share of the most frequent class from which on accuracy says little of the others
MAX_SEEDS = 1000  # that are worth naming
FIRST_SEEDS = 2  # after which the spread is known roughly
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
    """Return what one point is, and which margin can be decided by the rows alone."""
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
    by_row, overlap = DISAGREEMENT / rows, 1.0  # variance of a difference of one seed on these rows
    if plan.folds is not None:
        overlap += ROWS_OVERLAP / (plan.folds - 1)
    expected = Estimate(
        mean=np.float64(0.0),
        seed_variance=np.float64(0.0 if plan.folds else (1.0 - ALIKE) * by_row / 2),
        row_variance=np.float64(by_row * overlap if plan.folds else ALIKE * by_row),
        seeds=2,
        rows=rows,
    )
    alike = "" if plan.folds else f", {ALIKE:.0%} of that whatever the seed"
    return [
        *lines,
        f"{_decidable(expected, plan)}, if two trainings disagree on {DISAGREEMENT:.0%} of the "
        f"rows{alike}",
    ]


def _decidable(expected: Estimate, plan: Plan) -> str:
    """Return which margin the planned seeds and rows decide, and what the asked one takes.

    The interval is that of the first step of the choice among several, so the widest that the
    verdict takes. A mechanism whose quality is the baseline's is decided when half of it is below
    the margin.
    """
    metric, rows = metric_of(plan.metric), expected.rows
    seeds = plan.seeds if plan.seeds >= MIN_SEEDS else USUAL
    most = plan.seeds if plan.auto else MAX_SEEDS

    def half(seeds: int) -> float:
        return float(expected.half_width_of(seeds, _alpha(plan, seeds)))

    asked = metric.in_unit(metric.margin(plan.margin))
    what = f"{seeds} seeds" if rows is None else f"{seeds} seeds and {rows:,} {expected.unit}"
    smallest = f"{math.ceil(1000 * half(seeds) + EXACT) / 10:g}"
    if half(seeds) < plan.margin:
        return f"{what} can decide the margin of {asked}, and margins down to about {smallest}"
    least = metric.in_unit(smallest)
    decided = f"{what} can decide a margin of about {least} (--margin {smallest})"
    enough = next((n for n in range(seeds, most + 1) if half(n) < plan.margin), None)
    if enough is not None:
        return f"{decided}; for {asked} it takes about {enough:,} seeds"
    if rows is None or not plan.margin:
        return f"{decided}; for {asked} it takes more than {most:,} seeds"
    needed = _rounded(rows * (half(seeds) / plan.margin) ** 2)
    return (
        f"{decided}; no number of seeds is enough for {asked}, it takes about {needed:,} "
        f"{expected.unit}"
    )


def _rounded(rows: float) -> int:
    step = 10 ** max(0, math.floor(math.log10(rows)) - 1)
    return math.ceil(rows / step) * step


def _alpha(plan: Plan, seeds: int) -> float:
    """Return the level of the first step over all mechanisms that could be named, at one look."""
    candidates = sum(mechanism != plan.baseline for mechanism, _ in plan.pairs)
    alpha = (1.0 - LEVEL) / max(1, candidates)
    return level(alpha, seeds, plan.seeds) if plan.auto and seeds <= plan.seeds else alpha


def seeds_needed(results: Results, plan: Plan) -> str | None:
    """Return how many seeds can decide, from the first two of every mechanism.

    The variances of the differences to the baseline, over seeds and over rows, are averaged over
    the mechanisms. None if there is nothing to compare, or no spread.

    Args:
        results: results so far, with the answers where they were kept.
        plan: plan of the comparison.
    """
    scores = Scores(results, metric_of(plan.metric))
    found = []
    for mechanism, heads in results.pairs():
        if mechanism == plan.baseline:
            continue
        pairing, table = difference_table(scores, mechanism, heads)
        first = [place for place, seed in enumerate(pairing.seeds) if seed < FIRST_SEEDS]
        found_here = scores.estimate(table[first]) if len(first) == FIRST_SEEDS else None
        if found_here is not None:
            found.append(found_here)
    rows = {one.rows for one in found}
    if not found or len(rows) > 1 or not sum(float(one.standard_error) for one in found):
        return None
    pooled = Estimate(
        mean=np.float64(0.0),
        seed_variance=np.mean([one.seed_variance for one in found]),
        row_variance=np.mean([one.row_variance for one in found]),
        seeds=FIRST_SEEDS,
        rows=rows.pop(),
        unit=found[0].unit,
    )
    return f"after two seeds: {_decidable(pooled, plan)}; a rough estimate"


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
