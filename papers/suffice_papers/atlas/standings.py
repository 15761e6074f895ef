"""What the finished tables of the atlas say of each mechanism on each task."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from suffice.comparison.cost_to_target import costs_to_loss
from suffice.comparison.evaluation import state_bytes
from suffice.comparison.recall import RECALL, UNSOLVED, Solved, is_open, recalls
from suffice.comparison.results import Results
from suffice.comparison.sufficiency import (
    FAILS,
    FIRST,
    LEVEL,
    SUFFICES,
    TOO_EASY,
    UNDECIDED,
    UNLEARNED,
)
from suffice.comparison.verdict import Verdict, hopeless, is_improving, judge
from suffice.train.recipes import recipe
from suffice.utils.statistics import Summary, summarise
from suffice_papers.atlas.grid import NAMES, atlas_table, label, table_of, twins
from suffice_papers.atlas.recipes import HEADS, SOLVED
from suffice_papers.results import published
from suffice_papers.tables import BASELINE, SEEDS

MARKS = {SUFFICES: "✓", FAILS: "✗", UNDECIDED: "·", UNLEARNED: "○", UNSOLVED: "○", TOO_EASY: "↑"}
SHARE = 0.02  # of Standard's gain over learning nothing, that may be lost on real data
FEW = "few seeds"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One mechanism on one task."""

    task: str  # task of the atlas
    mechanism: str  # see `label`
    quality: Summary  # test accuracy over the seeds, or minus the loss of language in nats
    # difference to Standard, seed by seed; None without a shared seed, or if Standard learned
    # nothing, so that there is nothing to differ from, and on tasks of recall
    difference: Summary | None
    # loss of quality that is acceptable; None on tasks of recall, or without a floor
    margin: float | None = None
    # quality of Standard above that of learning nothing; None where that is not known
    gain: float | None = None
    solved: Solved | None = None  # seeds that solved a task of recall; None on real data
    # as `suffice.comparison.verdict` or `.recall` finds it for this pair alone: no other mechanism
    # widens its interval
    verdict: str
    is_open: bool = False  # whether a further seed may decide
    improving: bool = False  # whether most seeds were best in their last epoch
    state: float | None  # bytes of a layer after the whole input, of a language model
    # CPU seconds until the validation loss is Standard's, the median over the seeds; None if half
    # of them never reach it
    seconds: float | None = None
    # an earlier row that computes the same on this task, whose figures these are, or ""
    same_as: str = ""

    @property
    def known(self) -> bool:
        """Whether there are seeds enough for a verdict."""
        if self.solved is not None:
            return self.solved.seeds >= FIRST
        return self.difference is not None and self.difference.low is not None

    @property
    def mark(self) -> str:
        """A cell of the figure: what is said, and the seeds or the difference in its unit."""
        if self.same_as:
            return f"= {self.same_as}"
        if self.solved is not None:
            word = MARKS[self.verdict] if self.known else "…"
            return f"{word} {self.solved.count}/{self.solved.seeds}"
        if self.verdict == UNLEARNED:
            return MARKS[UNLEARNED]
        if not self.known:
            return "…"
        scale, digits = (1, 2) if self.task in NATS else (100, 1)
        return f"{MARKS[self.verdict]} {scale * self.difference.mean:+.{digits}f}"

    @property
    def words(self) -> str:
        """A cell of the matrix: the verdict with its interval."""
        if self.same_as:
            return self.mark
        if self.solved is not None:
            word = RECALLED[self.verdict] if self.known else FEW
            right = f", {100 * self.quality.mean:.0f}% of the answers right"
            return f"{word}: {self.solved}{right if self.solved.count < self.solved.seeds else ''}"
        if self.verdict == UNLEARNED or not self.known:
            return UNLEARNED if self.verdict == UNLEARNED else FEW
        scale, digits = (1, 3) if self.task in NATS else (100, 1)
        d = self.difference
        low, mean, high = (f"{scale * end:+.{digits}f}" for end in (d.low, d.mean, d.high))
        return f"{self.verdict}: {mean} [{low}, {high}]"


NATS = ("shakespeare", "stdlib")
"""Tasks that are judged by the loss."""
RECALLED = {SUFFICES: "solves it", FAILS: "rarely solves it", UNDECIDED: "undecided"}
RECALLED[UNSOLVED] = "Standard never solves it; here"


@cache
def standings() -> tuple[Standing, ...]:
    """Return the finished part of the atlas, as it is published."""
    contents = (published(atlas_table(name)) for name in NAMES)
    return tuple(s for c in contents if c is not None for s in standings_of(c.results))


def standings_of(results: Results) -> list[Standing]:
    """Return the mechanisms of one table, each judged against Standard by itself."""
    chosen = recipe(results.recipe)
    judged = _recall if chosen.task in RECALL else _against
    rows_of = atlas_table(table_of(results)).mechanisms
    trained = dict.fromkeys(c.mechanism for c in results.cells if c.mechanism in rows_of)
    same = {name: one for name, one in twins(results.recipe).items() if one in trained}
    margin, gain = (None, None) if judged is _recall else margin_of(results)
    rows = {}
    for mechanism in trained:
        specs = chosen.specs(mechanism, HEADS)
        costs = costs_to_loss(results, mechanism, HEADS)["seconds"]
        seconds = sorted(cost or math.inf for cost in costs.values())
        middle = seconds[len(seconds) // 2]
        rows[mechanism] = Standing(
            task=NAMES[table_of(results)],
            mechanism=label(mechanism),
            margin=margin,
            gain=gain,
            improving=is_improving(results.select(mechanism, HEADS)),
            state=(
                state_bytes(specs, chosen.model.length)
                if all(spec.pattern.causal for spec in specs)
                else None
            ),
            seconds=None if math.isinf(middle) else middle,
            **judged(results, mechanism, margin),
        )
    return [
        *rows.values(),
        *(
            replace(rows[one], mechanism=label(name), same_as=rows[one].mechanism)
            for name, one in same.items()
        ),
    ]


def margin_of(results: Results) -> tuple[float | None, float | None]:
    """Return the margin of a table of real data, and Standard's gain that it is a share of.

    Both are None where it is not known what learning nothing scores.
    """
    floor = _judge(results, BASELINE, 0.0).floors.get(HEADS)
    gain = None if floor is None else floor.above.mean
    return (None, None) if gain is None else (SHARE * max(0.0, gain), gain)


def metric_of(results: Results) -> str:
    """Return the metric that a table of real data is judged by."""
    return "log-loss" if results.task == "text" else "accuracy"


def _judge(results: Results, mechanism: str, margin: float | None) -> Verdict:
    names = (BASELINE, mechanism)
    cells = tuple(cell for cell in results.cells if cell.mechanism in names)
    # seeds are added to what is open, so levels are those of several looks
    pair = replace(results, cells=cells, most_seeds=SEEDS)
    return judge(pair, margin=margin, metric=metric_of(results))


def _against(results: Results, mechanism: str, margin: float | None) -> dict[str, Any]:
    verdict = _judge(results, mechanism, margin)
    compared, unlearned = verdict.find(mechanism, HEADS), verdict.outcome == UNLEARNED
    if compared is None:  # Standard itself
        return {"quality": verdict.qualities[HEADS], "difference": None, "verdict": UNDECIDED}
    word = UNLEARNED if unlearned else compared.sufficiency
    return {
        "quality": compared.quality,
        "difference": None if unlearned else compared.difference,
        "verdict": word,
        "is_open": word == UNDECIDED and not hopeless(compared, verdict.margin, SEEDS),
    }


def _recall(results: Results, mechanism: str, margin: float | None) -> dict[str, Any]:  # noqa: ARG001
    cells = results.select(mechanism, HEADS)
    solved, baseline = (
        Solved.of(some, SOLVED) for some in (cells, results.select(BASELINE, HEADS))
    )
    return {
        "quality": summarise([cell.test_accuracy for cell in cells]),
        "difference": None,
        "solved": solved,
        "verdict": recalls(solved, baseline),
        "is_open": mechanism != BASELINE and is_open(solved, baseline),
    }


ALPHA = 1.0 - LEVEL  # of each cell, over all looks and both sides
