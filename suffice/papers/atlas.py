"""The atlas: every mechanism that is legal, on every task of `suffice.recipes.atlas`.

A table of the atlas is one task. Its rows are all mechanisms that the model can have, some of them
at other settings; further seeds of Standard show what chance alone says.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from suffice.errors import ConfigError, DataError
from suffice.measure.advise.evidence import MARGINS, NONE_NAMED, backtests
from suffice.measure.cost_to_target import effort_of
from suffice.measure.probe.mechanisms import state_bytes
from suffice.measure.published import path_of
from suffice.measure.recall import MAX_SEEDS, Solved, is_open, recalls
from suffice.measure.report.canvas import FAINT, INK, blank, style, svg
from suffice.measure.report.plots import place_labels
from suffice.measure.report.sheet import Column, Sheet, markdown, sheet_of
from suffice.measure.results import Cell, Results
from suffice.measure.sequential import FIRST, level
from suffice.measure.statistics import Summary, summarise, t_quantile
from suffice.measure.two_way_interval import estimate
from suffice.measure.verdict import (
    FAILS,
    LEVEL,
    SUFFICES,
    TOO_EASY,
    UNDECIDED,
    UNLEARNED,
    Scores,
    Verdict,
    decide,
    hopeless,
    is_improving,
    judge,
    metric_in,
)
from suffice.models import TranslatorConfig
from suffice.models.kinds import Sizes
from suffice.papers.literature import LITERATURE
from suffice.papers.results import published
from suffice.papers.tables import BASELINE, CLASSES, PERPLEXITY, SEEDS, Table, of_cells
from suffice.presets import PRESETS
from suffice.recipes import Recipe, recipe
from suffice.recipes.atlas import HEADS, RECALL, SOLVED, TASKS
from suffice.utils.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

NAME = "atlas"
HYBRIDS = ("linear+softmax:2", "gated_deltanet+softmax:2", "retnet+softmax:2")
MIN_TASKS = 3  # tasks of a mechanism that an average is taken over
PRIOR = 4  # degrees of freedom of the spread that the mechanisms of a task share
DRAWS = 4_000  # of the averages, for the ranks they may have


def table_name(task: str, size: str) -> str:
    """Return the name of a table.

    Example:
        >>> table_name("two_hop", "300k")
        'atlas-two-hop-300k'
    """
    return f"{NAME}-{task}-{size}".replace("_", "-")


NAMES = {table_name(task, size): task for task, (_, size, _) in TASKS.items()}
"""The tables in the order of their training, with their tasks."""
TUNED_ON = dict.fromkeys(("imdb", "mnist", "womens_clothing", "translation_es"), "mnist")
TUNED_ON["shakespeare"] = "shakespeare"
"""Tasks whose learning rates a task takes; all others take those of the first."""
FURTHER = 12  # seeds of Standard alone, for what chance says


@cache
def atlas_table(name: str) -> Table:
    """Return a table of the atlas by its name, one of `NAMES`."""
    task = NAMES[name]
    data = TASKS[task][0]
    chosen = recipe(_recipe_name(task))
    source = TUNED_ON.get(task, next(iter(TASKS)))
    return of_cells(
        name,
        chosen.title,
        "of no version",
        chosen.name,
        "",
        (HEADS,),
        (*CLASSES, PERPLEXITY) if data == "text" else CLASSES,
        mechanisms=tuple(
            n
            for n in settings(chosen.model)
            if n not in twins(chosen.name) and _is_legal(chosen, n)
        ),
        seeds=MAX_SEEDS if data in RECALL else SEEDS,
        tuned_on=table_name(source, TASKS[source][1]),
        further=FURTHER,
    )


def settings(model: Sizes) -> tuple[str, ...]:
    """Return the rows of a table before those that its model cannot have are left out."""
    window = reaching(model)
    windows = () if window >= model.length else (f"{BASELINE}+window:{window}",)
    return (*dict.fromkeys((BASELINE, *PRESETS)), *windows, *HYBRIDS)


def reaching(model: Sizes) -> int:
    """Return the smallest window with which the blocks together reach the whole input.

    Example:
        >>> reaching(recipe("atlas_mqar8_70k").model)
        13
    """
    depth = model.decoder_depth if isinstance(model, TranslatorConfig) else model.depth
    return -(-(model.length - 1) // depth) + 1


@cache
def twins(name: str) -> dict[str, str]:
    """Return the rows of a recipe that compute what an earlier row does, with that row."""
    chosen, first, same = recipe(name), {}, {}
    for mechanism in settings(chosen.model):
        if _is_legal(chosen, mechanism):
            computed = tuple(chosen.specs(mechanism, HEADS)), chosen.model_of(mechanism)
            original = first.setdefault(computed, mechanism)
            if original != mechanism:
                same[mechanism] = original
    return same


def _is_legal(chosen: Recipe, mechanism: str) -> bool:
    try:
        chosen.specs(mechanism, HEADS)
    except ConfigError:
        return False
    return True


REACHES = f"{BASELINE}, window that reaches"


def label(mechanism: str) -> str:
    """Return the name of a row that tables of several lengths share.

    Example:
        >>> label("standard+window:13"), label("mqa")
        ('standard, window that reaches', 'mqa')
    """
    return REACHES if mechanism.startswith(f"{BASELINE}+window:") else mechanism


STAIRS = {table_name(f"mqar{2 * n}", "70k"): table_name(f"mqar{n}", "70k") for n in (8, 16)}
"""Tables of recall by the one with half of the pairs: who fails there is not trained here."""
CLIMBS = (2, 3)  # seeds out of the first ones that have to solve the table below


def climbs(cells: Sequence[Cell]) -> bool:
    """Return whether the first seeds solved a table often enough for the one above it."""
    first = sorted(cells, key=lambda cell: cell.seed)[: CLIMBS[1]]
    return Solved.of(first, SOLVED).count >= CLIMBS[0]


MARKS = {SUFFICES: "✓", FAILS: "✗", UNDECIDED: "·", UNLEARNED: "○", TOO_EASY: "↑"}
SHARE = 0.02  # of Standard's gain over learning nothing, that may be lost on real data
FEW = "few seeds"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One mechanism on one task.

    Args:
        task: task of the atlas.
        mechanism: see `label`.
        quality: test accuracy over the seeds, or minus the loss of language in nats.
        difference: difference to Standard, seed by seed; None without a shared seed, or if Standard
            learned nothing, so that there is nothing to differ from, and on tasks of recall.
        margin: loss of quality that is acceptable; None on tasks of recall, or without a floor.
        gain: quality of Standard above that of learning nothing; None where that is not known.
        solved: seeds that solved a task of recall; None on real data.
        verdict: the word of `suffice.measure.verdict` or `suffice.measure.recall`, of this pair by
            itself: no other mechanism widens its interval.
        is_open: whether a further seed may decide.
        improving: whether most seeds were best in their last epoch.
        state: bytes of a layer after the whole input, of a language model.
        seconds: CPU seconds until the validation loss is Standard's, the median over the seeds;
            None if half of them never reach it.
        same_as: an earlier row that computes the same on this task, whose figures these are, or "".
    """

    task: str
    mechanism: str
    quality: Summary
    difference: Summary | None
    margin: float | None = None
    gain: float | None = None
    solved: Solved | None = None
    verdict: str
    is_open: bool = False
    improving: bool = False
    state: float | None
    seconds: float | None = None
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
        if self.verdict == UNLEARNED:
            return MARKS[UNLEARNED]
        if self.solved is not None:
            word = MARKS[self.verdict] if self.known else "…"
            return f"{word} {self.solved.count}/{self.solved.seeds}"
        if not self.known:
            return "…"
        scale, digits = (1, 2) if self.task in NATS else (100, 1)
        return f"{MARKS[self.verdict]} {scale * self.difference.mean:+.{digits}f}"

    @property
    def words(self) -> str:
        """A cell of the matrix: the verdict with its interval."""
        if self.same_as or self.verdict == UNLEARNED:
            return self.mark if self.same_as else UNLEARNED
        if self.solved is not None:
            word = RECALLED[self.verdict] if self.known else FEW
            right = f", {100 * self.quality.mean:.0f}% of the answers right"
            return f"{word}: {self.solved}{right if self.solved.count < self.solved.seeds else ''}"
        if not self.known:
            return FEW
        scale, digits = (1, 3) if self.task in NATS else (100, 1)
        d = self.difference
        low, mean, high = (f"{scale * end:+.{digits}f}" for end in (d.low, d.mean, d.high))
        return f"{self.verdict}: {mean} [{low}, {high}]"


NATS = ("shakespeare",)
"""Tasks that are judged by the loss."""
RECALLED = {SUFFICES: "solves it", FAILS: "rarely solves it", UNDECIDED: "undecided"}


@cache
def standings() -> tuple[Standing, ...]:
    """Return the finished part of the atlas, as it is published."""
    contents = (published(atlas_table(name)) for name in NAMES)
    return tuple(s for c in contents if c is not None for s in standings_of(c.results))


def standings_of(results: Results) -> list[Standing]:
    """Return the mechanisms of one table, each judged against Standard by itself."""
    chosen = recipe(results.recipe)
    judged = _recall if chosen.task in RECALL else _against
    rows_of = atlas_table(_table_of(results)).mechanisms
    trained = dict.fromkeys(c.mechanism for c in results.cells if c.mechanism in rows_of)
    same = {name: one for name, one in twins(results.recipe).items() if one in trained}
    margin, gain = (None, None) if judged is _recall else margin_of(results)
    rows = {}
    for mechanism in trained:
        specs = chosen.specs(mechanism, HEADS)
        seconds = sorted(s or math.inf for s in effort_of(results, mechanism, HEADS).seconds)
        middle = seconds[len(seconds) // 2]
        rows[mechanism] = Standing(
            task=NAMES[_table_of(results)],
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
    """Return the fields of a row of real data."""
    verdict = _judge(results, mechanism, margin)
    compared, unlearned = verdict.find(mechanism, HEADS), verdict.outcome == "unlearned"
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
    """Return the fields of a row of a task of recall."""
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


@dataclass(frozen=True, kw_only=True)
class Average:
    """A mechanism over tasks: the mean of its differences to Standard, were they drawn again.

    Args:
        mechanism: see `label`.
        tasks: tasks that it was trained on.
        difference: the mean as a share of Standard's gain, with the 95% interval of a task like
            these.
        between: standard deviation of the true differences between tasks.
        ranks: the 2.5% and 97.5% quantile of its rank among all, 1 is best.
    """

    mechanism: str
    tasks: int
    difference: Summary
    between: float
    ranks: tuple[int, int] = (0, 0)


def averages(rows: Iterable[Standing]) -> list[Average]:
    """Return the mechanisms by their mean difference, best first.

    A random-effects model: each task has a different effect around the mechanism's mean, and
    is measured with the error of its seeds, whose variance is drawn to the median one of its task.

    Source: DerSimonian and Laird 1986 for the variance between tasks; Hartung and Knapp 2001 for
        the interval.
    """
    by_mechanism: dict[str, dict[str, Summary]] = {}
    standard: dict[str, float] = {}
    for row in rows:
        if not row.gain or row.same_as:
            continue
        if row.mechanism == BASELINE and row.quality.sd is not None:
            standard[row.task] = (row.quality.sd / row.gain) ** 2 / row.quality.n
        elif row.difference is not None and row.difference.sd is not None:
            share = {n: getattr(row.difference, n) / row.gain for n in ("mean", "sd")}
            of_gain = replace(row.difference, **share)
            by_mechanism.setdefault(row.mechanism, {})[row.task] = of_gain
    spreads: dict[str, list[float]] = {}
    for found in by_mechanism.values():
        for task, summary in found.items():
            spreads.setdefault(task, []).append(summary.sd**2)
    pooled = {task: median(values) for task, values in spreads.items()}
    means = [
        _average(name, found, pooled)
        for name, found in by_mechanism.items()
        if len(found) >= MIN_TASKS
    ]
    means.sort(key=lambda one: -one[0].difference.mean)
    return _ranked(means, standard)


_Pooled = tuple[Average, dict[str, float]]
"""An average, and the weights of its tasks."""


def _average(mechanism: str, found: Mapping[str, Summary], pooled: Mapping[str, float]) -> _Pooled:
    effects = np.array([summary.mean for summary in found.values()])
    # a difference of exactly nothing is measured as well as one of a thousandth of a point
    variances = np.array([max(_shrunk(s, pooled[task]) / s.n, 1e-10) for task, s in found.items()])
    weights, count = 1 / variances, len(found)
    mean = float(np.average(effects, weights=weights))
    excess = float(weights @ (effects - mean) ** 2) - (count - 1)
    between = max(0.0, excess / (weights.sum() - (weights**2).sum() / weights.sum()))
    weights = 1 / (variances + between)
    mean = float(np.average(effects, weights=weights))
    scale = max(1.0, float(weights @ (effects - mean) ** 2) / (count - 1))
    error = float(np.sqrt(scale / weights.sum()))
    half = t_quantile(0.95, count - 1) * error
    summary = Summary(n=count, mean=mean, sd=error, low=mean - half, high=mean + half)
    average = Average(mechanism=mechanism, tasks=count, difference=summary, between=between**0.5)
    return average, dict(zip(found, weights / weights.sum(), strict=True))


def _shrunk(summary: Summary, pooled: float) -> float:
    """Return the variance over seeds, drawn to the pooled one: two or three tell little of it."""
    freedom = summary.n - 1
    return (freedom * (summary.sd or 0.0) ** 2 + PRIOR * pooled) / (freedom + PRIOR)


def _ranked(means: Sequence[_Pooled], standard: Mapping[str, float]) -> list[Average]:
    """Return averages with the ranks they may have, Standard drawn once for all of a task.

    Args:
        means: averages with the weights of their tasks.
        standard: variance of the mean of Standard by task, which all differences there share.
    """
    if not means:
        return []
    random = np.random.default_rng(0)
    tasks = sorted({task for _, weights in means for task in weights})
    common = np.array([[weights.get(t, 0.0) for t in tasks] for _, weights in means])
    common = common * np.sqrt([standard.get(task, 0.0) for task in tasks])
    centre = np.array([average.difference.mean for average, _ in means])
    error = np.array([average.difference.sd for average, _ in means])
    own = np.sqrt(np.maximum(0.0, error**2 - (common**2).sum(axis=1)))
    draws = centre - random.standard_normal((DRAWS, len(tasks))) @ common.T
    draws += own * random.standard_normal((DRAWS, len(means)))
    ranks = (-draws).argsort(axis=1).argsort(axis=1) + 1
    low, high = np.quantile(ranks, (0.025, 0.975), axis=0)
    return [
        replace(average, ranks=(int(a), int(b)))
        for (average, _), a, b in zip(means, low, high, strict=True)
    ]


def _tasks() -> list[str]:
    return [task for task in TASKS if any(row.task == task for row in standings())]


def _by_task(title: str, cell: Callable[[Standing], str], *more: Column) -> Sheet:
    """Return a sheet with a line for each mechanism and a column for each task."""
    rows = [row for row in standings() if row.mechanism != BASELINE]
    cells = {(row.mechanism, row.task): cell(row) for row in rows}

    def column(task: str) -> Column:
        return Column(title=task, cell=lambda name: cells.get((name, task), ""))

    names = list(dict.fromkeys(name for (name, _), text in cells.items() if text))
    columns = (Column(title="mechanism", cell=str), *map(column, _tasks()), *more)
    return sheet_of(title, columns, names, caption=LEGEND)


LEGEND = (
    "Recall: seeds that solve the task, with the interval of Clopper and Pearson. Real data: "
    "points of accuracy, or nats of language, above Standard, with the interval that decides. In "
    "the figure ✓ suffices or solves it; ✗ does not suffice or rarely solves it; · undecided; … "
    "fewer than three seeds; ○ nothing was learned by Standard; ↑ too easy to tell; = computes "
    "what the named row does; blank: not trained."
)


def matrix() -> Sheet:
    """Return the matrix of mechanisms and tasks in words."""
    field = Column(title="what the field says", cell=lambda name: LITERATURE.get(name, ""))
    return _by_task("What suffices where", lambda row: row.words, field)


def staircase() -> Sheet:
    """Return what is solved of the recall of 8, 16 and 32 pairs, the most first."""
    names = [task for task in TASKS if TASKS[task][0] == "mqar"]
    rows = [row for row in standings() if row.task in names and not row.same_as]
    by_name: dict[str, dict[str, Solved]] = {}
    for row in rows:
        by_name.setdefault(row.mechanism, {})[row.task] = row.solved

    def rate(name: str, task: str) -> float:
        solved = by_name[name].get(task)
        return -1.0 if solved is None else solved.count / solved.seeds

    def epochs(name: str, task: str) -> str:
        solved = by_name[name].get(task)
        if solved is None:
            return ""
        middle = solved.median_epochs
        after = "" if middle is None else f", after {middle:g}"
        return f"{solved.count}/{solved.seeds}{after}"

    order = sorted(by_name, key=lambda name: ([-rate(name, t) for t in reversed(names)], name))
    columns = [
        Column(title=task, cell=lambda name, task=task: epochs(name, task)) for task in names
    ]
    caption = "Seeds that solve it, and the median of the epochs to do so where most do."
    first = Column(title="mechanism", cell=str)
    return sheet_of("Staircase of recall", (first, *columns), order, caption=caption)


def average_sheet(rows: Sequence[Standing], title: str) -> Sheet:
    """Return the averages over tasks as a table."""

    def percent(average: Average) -> str:
        d = average.difference
        return f"{100 * d.mean:+.1f} [{100 * d.low:+.1f}, {100 * d.high:+.1f}]"

    return sheet_of(
        title,
        (
            Column(title="mechanism", cell=lambda a: a.mechanism),
            Column(title="tasks", cell=lambda a: str(a.tasks)),
            Column(title="mean difference, % of Standard's gain", cell=percent),
            Column(title="sd between tasks", cell=lambda a: f"{100 * a.between:.1f}"),
            Column(title="rank", cell=lambda a: f"{a.ranks[0]} to {a.ranks[1]}"),
        ),
        averages(rows),
    )


def trials_sheet() -> Sheet:
    """Return what `advise` would have named on each task from the others, and whether it did."""
    found = backtests()
    counts = Counter(one.outcome for one in found)
    named = len(found) - counts[NONE_NAMED]
    by_table = {one.source: {} for one in found}
    for one in found:
        by_table[one.source][one.margin] = one

    def column(margin: float) -> Column:
        def cell(source: str) -> str:
            one = by_table[source][margin]
            return one.named and f"{MARKS[one.outcome]} {one.named}"

        return Column(title=f"{100 * margin:g} points", cell=lambda source: cell(source) or "none")

    return sheet_of(
        "What advise names on a task that is left out",
        (Column(title="table", cell=str), *map(column, MARGINS)),
        list(by_table),
        caption=f"{len(found)} trials on {len({one.data for one in found})} data sets: {named} "
        f"named, of which {counts[SUFFICES]} suffice there (✓), {counts[FAILS]} do not (✗) and "
        f"{counts[UNDECIDED]} are open (·); {counts[NONE_NAMED]} times it names none.",
    )


@dataclass(frozen=True, kw_only=True)
class Null:
    """What is said of Standard against itself, from seeds that share nothing.

    Args:
        task: task of the atlas.
        seeds: seeds of Standard.
        fails: share of the draws in which it does not suffice, though it is the same.
        suffices: share in which it suffices when it is worse by exactly the margin.
    """

    task: str
    seeds: int
    fails: float
    suffices: float


NULL_DRAWS = 400


@cache
def nulls() -> tuple[Null, ...]:
    """Return the nulls of the tables of real data that have Standard's further seeds."""
    contents = (published(atlas_table(name)) for name in NAMES)
    return tuple(n for c in contents if c is not None and (n := null_of(c.results)) is not None)


def null_of(results: Results) -> Null | None:
    """Return how often the looks at 3 to 5 seeds of Standard against others of it decide falsely.

    Seeds are drawn without replacement, five against five; None with fewer than ten.
    """
    seeds = [cell.seed for cell in results.select(BASELINE, HEADS)]
    if results.task in RECALL or len(seeds) < 2 * SEEDS:
        return None
    task, margin = NAMES[_table_of(results)], margin_of(results)[0]
    if margin is None:
        return None
    scores = Scores(results, metric_in(results, metric_of(results)))
    table, random = scores.table(BASELINE, HEADS, seeds), np.random.default_rng(0)
    wrong = dict.fromkeys((0.0, margin), 0)
    for _ in range(NULL_DRAWS):
        drawn = random.permutation(len(seeds))
        difference = table[drawn[:SEEDS]] - table[drawn[SEEDS : 2 * SEEDS]]
        for shift, false in ((0.0, FAILS), (margin, SUFFICES)):
            words = (
                decide(estimate(difference[:n] - shift), margin, level(ALPHA, n, SEEDS))
                for n in range(FIRST, SEEDS + 1)
            )
            wrong[shift] += next((word for word in words if word != UNDECIDED), "") == false
    return Null(
        task=task,
        seeds=len(seeds),
        fails=wrong[0.0] / NULL_DRAWS,
        suffices=wrong[margin] / NULL_DRAWS,
    )


def _table_of(results: Results) -> str:
    return table_name(*results.recipe.removeprefix(f"{NAME}_").rsplit("_", 1))


ALPHA = 1.0 - LEVEL  # of each cell, over all looks and both sides
COLOURS = {SUFFICES: "#00855f", FAILS: "#b23a12", UNDECIDED: "#7a6a00"}
COLOURS |= {TOO_EASY: "#4b6a88", UNLEARNED: FAINT[0]}
COSTS = {
    "state": "KV cache or state of a layer after the input, bytes",
    "seconds": "CPU seconds to Standard's validation loss",
}


def quality_figure(cost: str) -> Figure:
    """Draw quality over a cost, "state" or "seconds", with the names of what nothing beats.

    Colours are verdicts. The bars are the 95% intervals of each mean by itself; verdicts rest on
    differences seed by seed, whose intervals are narrower.
    """
    rows = [row for row in standings() if getattr(row, cost) and not row.same_as]
    tasks = [task for task in _tasks() if any(row.task == task for row in rows)]
    columns = min(2, len(tasks))
    with style():
        height = 3.6 * -(-len(tasks) // columns)
        figure, grid = blank(-(-len(tasks) // columns), columns, width=4.8 * columns, height=height)
        panels = [axes for line in grid for axes in line]
        for axes in panels[len(tasks) :]:
            axes.set_visible(False)
        for axes, task in zip(panels, tasks, strict=False):
            _panel(axes, [row for row in rows if row.task == task], cost)
            axes.set_title(task)
    return figure


def _panel(axes: Axes, rows: Sequence[Standing], cost: str) -> None:
    """Draw the mechanisms of one task."""
    scale = 1 if rows[0].task in NATS else 100
    for row in rows:
        low, mean, high = (
            row.quality.mean if end is None else end
            for end in (row.quality.low, row.quality.mean, row.quality.high)
        )
        axes.errorbar(
            getattr(row, cost),
            scale * mean,
            yerr=[[scale * (mean - low)], [scale * (high - mean)]],
            color=_colour(row),
            marker="s" if row.mechanism == BASELINE else "o",
            linewidth=1.0,
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel(COSTS[cost])
    axes.set_ylabel("minus the loss, nats" if scale == 1 else "test accuracy, %")
    axes.margins(0.12)
    best, named = -math.inf, []
    for row in sorted(rows, key=lambda row: (getattr(row, cost), -row.quality.mean)):
        if row.quality.mean > best or row.mechanism == BASELINE:
            named.append(row)
        best = max(best, row.quality.mean)
    points = {row.mechanism: (getattr(row, cost), scale * row.quality.mean) for row in named}
    place_labels(axes, points, list(map(_colour, named)), [])


def _colour(row: Standing) -> str:
    return INK[0] if row.mechanism == BASELINE else COLOURS[row.verdict]


def matrix_figure(tasks: Sequence[str]) -> Figure:
    """Draw the marks of some tasks."""
    rows = [row for row in standings() if row.task in tasks and row.mechanism != BASELINE]
    names = list(dict.fromkeys(row.mechanism for row in rows))
    with style():
        height = 1.0 + 0.23 * len(names)
        figure, [[axes]] = blank(1, 1, width=2.8 + 0.8 * len(tasks), height=height)
        for row in rows:
            x, y = tasks.index(row.task), names.index(row.mechanism)
            colour = COLOURS[row.verdict] if row.known else FAINT[0]
            faint = {SUFFICES: 0.25, FAILS: 0.25}.get(row.verdict, 0.12) if row.known else 0.04
            axes.add_patch(_square(x, y, colour, faint))
            axes.text(x, y, row.mark, ha="center", va="center", fontsize=7.5, color=INK[0])
        axes.set_xlim(-0.5, len(tasks) - 0.5)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xticks(range(len(tasks)), tasks, rotation=35, ha="left")
        axes.xaxis.tick_top()
        axes.set_yticks(range(len(names)), names)
        axes.grid(visible=False)
        axes.tick_params(length=0)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
    return figure


def _square(x: float, y: float, colour: str, alpha: float) -> Rectangle:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.48, y - 0.45), 0.96, 0.9, color=colour, alpha=alpha, linewidth=0)


HEAD = """# The atlas, in progress: what suffices where

Written by `suffice reproduce atlas --publish`; a test fails when it is stale. Every mechanism of
`suffice list` that a model can have, against Standard with four heads. Trainings are short and
models are small: what stands here is about learning with little, and larger models may differ.

On tasks of recall a training ends when it is solved, so that what counts is how many seeds solve
it, of up to ten, and after how many epochs. On real data the margin is 2% of what Standard gains
over learning nothing, from up to five seeds. Each cell is judged by itself, at 95% over all the
looks that adding seeds takes; no further seed is trained where a verdict stands, or will hardly
ever. The learning rate of each mechanism is the best of three by one separate seed, on recall
of 8 pairs, or with half of the epochs on Shakespeare or MNIST; other tasks take that of the
nearest. A table with one rate for all says so.
"""


def _chances(rows: Sequence[Standing]) -> str:
    """State how many cells may be decided falsely, and what is said of Standard against itself."""
    judged = [row for row in rows if row.known and not row.same_as and row.mechanism != BASELINE]
    text = (
        f"{len(judged)} cells have the seeds for a verdict. If all were exactly at the margin in "
        f"truth, {ALPHA * len(judged):.1f} would be decided by chance alone, half of them as "
        "sufficient."
    )
    for null in nulls():
        text += (
            f" On {null.task} {null.seeds} seeds of Standard, drawn five against five, falsely do "
            f"not suffice in {100 * null.fails:.1f}% of the draws; made worse by exactly the "
            f"margin, they falsely suffice in {100 * null.suffices:.1f}%."
        )
    return text


def windows() -> Sheet:
    """Return how many tokens the windows have, and how far the blocks reach back with them."""

    def cell(row: Standing) -> str:
        chosen = recipe(_recipe_name(row.task))
        names = {label(name): name for name in settings(chosen.model)}
        specs = chosen.specs(names[row.mechanism], HEADS)
        sizes = list(_windows(specs[0].pattern.to_json()))
        reach = len(specs) * (max(sizes, default=1) - 1) + 1
        return f"{', '.join(map(str, sizes))} ({reach} of {chosen.model.length})" if sizes else ""

    return _by_task("Windows, tokens", cell)


def _windows(pattern: Mapping[str, Any]) -> Iterator[int]:
    """Yield the sizes of the windows in the JSON form of a pattern; blocks count no tokens."""
    if pattern["name"] == "Window":
        yield pattern["size"]
    for part in pattern.get("parts", ()):
        yield from _windows(part)


def _recipe_name(task: str) -> str:
    return f"{NAME}_{task}_{TASKS[task][1]}"


def page() -> str:
    """Return docs/atlas.md for what is published now."""
    rows = standings()
    lines = [HEAD, "## What was run", "", *markdown(progress_sheet()), "", _chances(rows), ""]
    shown = matrix()
    lines += ["## What suffices where", "", *(f"![{n}](atlas/{n}.svg)" for n in figures()), ""]
    lines += [*markdown(shown), "", shown.caption, ""]
    for sheet in (staircase(), windows()):
        caption = ["", sheet.caption] if sheet.caption != LEGEND else []
        lines += [f"## {sheet.title}", "", *markdown(sheet), *caption, ""]
    if averages(rows):
        title = "Over tasks of real data"
        lines += [f"## {title}", "", *markdown(average_sheet(rows, title)), ""]
    return "\n".join(lines)


def figures() -> dict[str, Callable[[], Figure]]:
    """Return what draws the figures of the page, by the names of their files."""
    of = {"recall": True, "real": False}
    drawn: dict[str, Callable[[], Figure]] = {}
    for name, is_recall in of.items():
        if tasks := [task for task in _tasks() if (TASKS[task][0] in RECALL) is is_recall]:
            drawn[f"matrix-{name}"] = partial(matrix_figure, tasks)
    costs = [c for c in COSTS if any(getattr(row, c) for row in standings())]
    return drawn | {f"quality-{cost}": partial(quality_figure, cost) for cost in costs}


def progress_sheet() -> Sheet:
    """Return what is published of every table, and what it cost."""

    def cells(name: str) -> list[str]:
        content = published(atlas_table(name))
        if content is None:
            return [name, "not trained", *[""] * 5]
        results, rows = content.results, standings_of(content.results)
        seeds = Counter(cell.mechanism for cell in results.cells)
        others = [seeds[m] for m in seeds if m != BASELINE]
        counts = f"{min(others)} to {max(others)}; Standard {seeds[BASELINE]}"
        standard = next(row for row in rows if row.mechanism == BASELINE)
        floor = "" if standard.gain is None else f"{standard.quality.mean - standard.gain:.3f}"
        if standard.solved is not None:
            floor = f"{results.chance:.3f}" if results.chance is not None else ""
        edges = sum(one.at_edge for one in results.tuned)
        rates = f"tuned, {edges} at an edge" if results.tuned else "one for all"
        open_rows, late = (sum(getattr(r, n) for r in rows) for n in ("is_open", "improving"))
        hours = sum(cell.cost_seconds for cell in results.cells)
        hours += sum({one.seconds for one in results.tuned}) if _tunes(name) else 0.0
        return [
            name,
            f"{len(results.cells)} trainings: {counts}",
            rates,
            f"{floor} to {standard.quality.mean:.3f}",
            f"{late} of {len(rows)}",
            str(open_rows),
            f"{hours / 3600:.2f}",
        ]

    titles = (
        *("table", "seeds of a row", "learning rates", "learning nothing to Standard"),
        *("still improving", "open", "CPU hours"),
    )
    columns = (
        Column(title=title, cell=lambda row, n=number: row[n])
        for number, title in enumerate(titles)
    )
    caption = "One table: suffice reproduce TABLE --run --jobs 2 --publish"
    return sheet_of("The atlas", tuple(columns), [cells(name) for name in NAMES], caption=caption)


def _tunes(name: str) -> bool:
    return atlas_table(name).tuned_on == name


def write_page() -> Path:
    """Write docs/atlas.md and its figures, and return the page's file."""
    docs = path_of("x").parents[2] / "docs"
    if not docs.is_dir():
        raise DataError("docs/atlas.md belongs to a checkout of the source; write it there.")
    standings.cache_clear()
    nulls.cache_clear()
    for stem, draw in figures().items():
        write_atomic(docs / NAME / f"{stem}.svg", svg(draw(), stem))
    write_atomic(docs / f"{NAME}.md", page())
    return docs / f"{NAME}.md"
