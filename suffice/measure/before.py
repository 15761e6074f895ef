"""What is said before anything is trained, and after two seeds: what the data can decide."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console

from suffice.data.survey import Survey
from suffice.measure.plan import Plan
from suffice.measure.results import Cell
from suffice.measure.sentence import margin_points
from suffice.measure.statistics import half_width, seeds_needed
from suffice.measure.verdict import MIN_SEEDS

DISAGREEMENT = 0.2  # share of the rows that two trainings answer differently, until it is known
MOST = 1000  # seeds
SHOWN = 12  # classes in a table; of more the most and the least frequent are named
USUAL = 5  # seeds of a comparison that is to end in a verdict


def describe(survey: Survey, plan: Plan) -> list[str]:
    """Return what is to be known before training, a line each, of at most 80 columns or so.

    Args:
        survey: of the data.
        plan: of the comparison.
    """
    lines = [f"data: {plan.recipe.title}", *_class_lines(survey)]
    lines += _text_lines(survey)
    lines += [f"note: {note}" for note in survey.notes]
    if survey.majority is not None:
        lines.append(
            f'always "{survey.majority_class}" would be right in {survey.majority:.1%} of the test '
            "rows" + ("" if survey.chance is None else f"; a blind guess in {survey.chance:.1%}")
        )
    elif survey.chance is not None:
        lines.append(f"a blind guess would be right in {survey.chance:.1%}")
    lines += _resolution(survey, plan)
    return lines


def show(survey: Survey, plan: Plan, console: Console) -> None:
    """Print `describe`, cut at the width of a terminal."""
    wraps = console.is_terminal
    for line in describe(survey, plan):
        console.print(line, markup=False, highlight=False, soft_wrap=not wraps)


def _class_lines(survey: Survey) -> list[str]:
    parts = list(survey.rows)
    if not survey.classes:
        return ["rows: " + ", ".join(f"{count:,} {part}" for part, count in survey.rows.items())]
    if len(survey.classes) > SHOWN:
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
        f"{name} in {part}"
        for part in parts
        for name, count in zip(survey.classes, survey.counts[part], strict=True)
        if count == 0
    ]
    if absent:
        lines.append(f"no row of class {', '.join(absent[:4])}")
    return lines


def _text_lines(survey: Survey) -> list[str]:
    lines = []
    if survey.repeated is not None and survey.overlap is not None:
        repeated, overlap = sum(survey.repeated.values()), sum(survey.overlap.values())
        lines.append(
            f"repeated rows: {repeated:,} within a part; {overlap:,} of validation or test are "
            "also in an earlier part"
            + (", as the model reads them" if survey.read is not None else "")
        )
    if survey.cut is not None:
        lines.append(
            f"texts: {survey.median:.0f} words (median), {survey.longest:,} the longest; the last "
            f"{survey.read} are read, {survey.cut:.0%} are longer"
            + (f" (--set length={_longer(survey)} reads more)" if survey.cut > 0.2 else "")  # noqa: PLR2004
        )
    return lines


def _longer(survey: Survey) -> int:
    return 2 ** math.ceil(math.log2(1.5 * max(survey.median or 1, survey.read or 1)))


def _resolution(survey: Survey, plan: Plan) -> list[str]:
    """Return what one point is, and how many seeds can decide at the margin by the rows alone."""
    if survey.majority is None:
        return []
    rows, margin = survey.rows["test"], plan.margin
    lines = [
        f"one point of accuracy is {survey.rows_of_a_point:.3g} test rows; the margin of "
        f"{margin_points(margin)} is {margin * rows:.3g}"
    ]
    if plan.seeds < MIN_SEEDS:
        few = "1 seed gives" if plan.seeds == 1 else f"{plan.seeds} seeds give"
        lines.append(f"{few} no verdict; {USUAL} can")
    sd = math.sqrt(DISAGREEMENT / rows)
    lines.append(
        _seeds(sd, margin, plan.seeds)
        + f", if two trainings disagree on {DISAGREEMENT:.0%} of the rows"
    )
    return lines


def _seeds(sd: float, margin: float, seeds: int) -> str:
    now = 100 * half_width(sd, seeds) if seeds > 1 else math.inf
    more = seeds_needed(lambda half: half < margin, sd=sd, n=2, cap=MOST)
    needed = "more than 1,000" if more is None else f"about {2 + more}"
    resolves = f"{seeds} seeds tell differences of {now:.1f} points apart; " if seeds > 1 else ""
    return f"{resolves}{needed} decide at a margin of {margin_points(margin)}"


def after_two_seeds(cells: Sequence[Cell], plan: Plan) -> str | None:
    """Return how many seeds can decide, from the first two of every mechanism.

    The differences to the baseline between the two seeds give one spread, pooled over mechanisms.
    None if there is nothing to compare, or no spread.
    """
    accuracy = {cell.key: cell.test_accuracy for cell in cells}
    squares = []
    for mechanism, heads in plan.pairs:
        keys = [((mechanism, heads, s), (plan.baseline, heads, s)) for s in range(2)]
        if mechanism == plan.baseline or not all(k in accuracy for pair in keys for k in pair):
            continue
        first, second = (accuracy[ours] - accuracy[base] for ours, base in keys)
        squares.append((first - second) ** 2 / 2)
    if not squares or not sum(squares):
        return None
    sd = math.sqrt(sum(squares) / len(squares))
    return f"after two seeds: {_seeds(sd, plan.margin, plan.seeds)}; a rough estimate"
