"""The atlas: every mechanism that is legal, on every task of `suffice.recipes.atlas`.

A table of the atlas is one task at one size. Its rows are all mechanisms that the model can have,
some of them at other settings, and Standard drawn again, which shows what chance alone says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from suffice.errors import ConfigError, DataError
from suffice.measure.advise.evidence import MARGINS, NONE_NAMED, backtests
from suffice.measure.probe.mechanisms import state_bytes
from suffice.measure.published import Published, path_of
from suffice.measure.report.canvas import FAINT, INK, blank, style, svg
from suffice.measure.report.plots import place_labels
from suffice.measure.report.sheet import Column, Sheet, markdown, sheet_of
from suffice.measure.results import Results
from suffice.measure.statistics import Summary, t_quantile
from suffice.measure.verdict import FAILS, LEVEL, SUFFICES, TOO_EASY, UNDECIDED, UNLEARNED, judge
from suffice.papers.request import request_cells
from suffice.papers.results import published
from suffice.papers.rows import machine_line
from suffice.papers.tables import BASELINE, CLASSES, PERPLEXITY, SEEDS, Table, of_cells
from suffice.presets import PRESETS
from suffice.recipes import ATLAS, Recipe, recipe
from suffice.recipes.atlas import HEADS, RECALL, SIZES, TASKS
from suffice.utils.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

NAME = "atlas"
NULL = f"{BASELINE}+draw:1"
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


NAMES = tuple(table_name(task, size.name) for size in SIZES for task in TASKS)


@cache
def atlas_table(name: str) -> Table:
    """Return a table of the atlas by its name, one of `NAMES`."""
    chosen = recipe(dict(zip(NAMES, ATLAS, strict=True))[name])
    return of_cells(
        name,
        chosen.title,
        "of no version",
        chosen.name,
        "",
        (HEADS,),
        (*CLASSES, PERPLEXITY) if chosen.task == "text" else CLASSES,
        mechanisms=tuple(
            n
            for n in settings(chosen.model.length)
            if n not in twins(chosen.name) and _is_legal(chosen, n)
        ),
    )


def settings(length: int) -> tuple[str, ...]:
    """Return the rows of a table before those that its model cannot have are left out.

    Example:
        >>> [name for name in settings(64) if name.startswith("standard+")]
        ['standard+draw:1', 'standard+window:16', 'standard+window:32']
    """
    windows = dict.fromkeys(f"{BASELINE}+window:{max(2, length // part)}" for part in (4, 2))
    return (BASELINE, NULL, *(name for name in PRESETS if name != BASELINE), *windows, *HYBRIDS)


@cache
def twins(name: str) -> dict[str, str]:
    """Return the rows of a recipe that compute what an earlier row does, with that row."""
    chosen, first, same = recipe(name), {}, {}
    for mechanism in settings(chosen.model.length):
        if mechanism != NULL and _is_legal(chosen, mechanism):
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


def label(mechanism: str, length: int) -> str:
    """Return the name of a row that tables of several lengths share.

    Example:
        >>> label("standard+window:16", 64), label("mqa", 64)
        ('standard, window of a quarter', 'mqa')
    """
    for part, words in ((4, "a quarter"), (2, "a half")):
        if mechanism == f"{BASELINE}+window:{max(2, length // part)}":
            return f"{BASELINE}, window of {words}"
    return mechanism


MARKS = {SUFFICES: "✓", FAILS: "✗", UNDECIDED: "·", UNLEARNED: "○", TOO_EASY: "↑"}


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One mechanism on one task at one size.

    Args:
        task: task of the atlas.
        size: size of its models.
        mechanism: see `label`.
        quality: test accuracy over the seeds; None where fewer than one is finished.
        difference: difference to Standard, seed by seed; None without a shared seed, or if Standard
            learned nothing, so that there is nothing to differ from.
        verdict: the word of `suffice.measure.verdict` at a margin of a point, of this pair by
            itself: no other mechanism widens its interval.
        state: bytes of a layer after the whole input, of a language model.
        flops: FLOPs of a forward, over Standard's.
        seconds: seconds of an epoch, over Standard's of the same seed, the median.
        same_as: an earlier row that computes the same on this task, whose figures these are, or "".
    """

    task: str
    size: str
    mechanism: str
    quality: Summary
    difference: Summary | None
    verdict: str
    state: float | None
    flops: float
    seconds: float
    same_as: str = ""

    @property
    def mark(self) -> str:
        """The cell of the matrix: the difference in points, and what it says."""
        if self.same_as:
            return f"= {self.same_as}"
        if self.verdict == UNLEARNED:
            return MARKS[UNLEARNED]
        if self.difference is None or self.difference.low is None:
            return "…"
        return f"{MARKS[self.verdict]} {100 * self.difference.mean:+.1f}"


@cache
def standings() -> tuple[Standing, ...]:
    """Return the finished part of the atlas, as it is published."""
    return tuple(
        standing
        for name, (size, task) in zip(
            NAMES, ((s.name, t) for s in SIZES for t in TASKS), strict=True
        )
        if (content := published(atlas_table(name))) is not None
        for standing in standings_of(content.results, task, size)
    )


def standings_of(results: Results, task: str, size: str) -> list[Standing]:
    """Return the mechanisms of one table, each judged against Standard by itself."""
    chosen = recipe(results.recipe)
    baseline = [cell for cell in results.cells if cell.mechanism == BASELINE]
    usual = {cell.seed: cell.seconds_per_epoch for cell in baseline}
    rows = []
    trained = dict.fromkeys(cell.mechanism for cell in results.cells)
    same = {name: one for name, one in twins(results.recipe).items() if one in trained}
    for mechanism in (name for name in trained if name not in same):
        cells = results.select(mechanism, HEADS)
        pair = cells if mechanism == BASELINE else [*baseline, *cells]
        # seeds are added to what is open, so levels are those of several looks
        verdict = judge(replace(results, cells=tuple(pair), most_seeds=SEEDS))
        compared, unlearned = verdict.find(mechanism, HEADS), verdict.outcome == "unlearned"
        sufficiency = UNDECIDED if compared is None else compared.sufficiency
        specs = chosen.specs(mechanism, HEADS)
        caches = all(spec.pattern.causal for spec in specs)
        rows.append(
            Standing(
                task=task,
                size=size,
                mechanism=label(mechanism, chosen.model.length),
                quality=verdict.qualities[HEADS] if compared is None else compared.quality,
                difference=None if compared is None or unlearned else compared.difference,
                verdict=UNLEARNED if unlearned else sufficiency,
                state=state_bytes(specs, chosen.model.length) if caches else None,
                flops=cells[0].flops / baseline[0].flops,
                seconds=median(
                    cell.seconds_per_epoch / usual[cell.seed]
                    for cell in cells
                    if cell.seed in usual
                ),
            )
        )
    of = {row.mechanism: row for row in rows}
    length = chosen.model.length
    return rows + [
        replace(of[label(one, length)], mechanism=label(name, length), same_as=label(one, length))
        for name, one in same.items()
    ]


@dataclass(frozen=True, kw_only=True)
class Average:
    """A mechanism over tasks: the mean of its differences to Standard, were they drawn again.

    Args:
        mechanism: see `label`.
        tasks: tasks that it was trained on.
        difference: the mean in test accuracy, with the 95% interval of a task like these.
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
        if row.mechanism == BASELINE and row.quality.sd is not None:
            standard[row.task] = row.quality.sd**2 / row.quality.n
        elif row.difference is not None and row.difference.sd is not None and not row.same_as:
            by_mechanism.setdefault(row.mechanism, {})[row.task] = row.difference
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


def matrix(size: str) -> Sheet:
    """Return the matrix of one size: a line for each mechanism, a column for each task."""
    rows = [row for row in standings() if row.size == size and row.mechanism != BASELINE]
    tasks = [task for task in TASKS if any(row.task == task for row in rows)]
    names = list(dict.fromkeys(row.mechanism for row in rows))
    marks = {(row.mechanism, row.task): row.mark for row in rows}

    def column(task: str) -> Column:
        return Column(title=task, cell=lambda name: marks.get((name, task), ""))

    return sheet_of(
        f"Points of test accuracy above Standard, {size}",
        (Column(title="mechanism", cell=str), *map(column, tasks)),
        names,
        caption="✓ suffices at a margin of one point; ✗ does not suffice; · open: more seeds may "
        "decide; … fewer than three seeds; ○ Standard itself learned nothing; ↑ too easy to tell; "
        "= computes what the named row does; blank: not trained.",
    )


def average_sheet(rows: Sequence[Standing], title: str) -> Sheet:
    """Return the averages over tasks as a table."""

    def points(average: Average) -> str:
        d = average.difference
        return f"{100 * d.mean:+.1f} [{100 * d.low:+.1f}, {100 * d.high:+.1f}]"

    return sheet_of(
        title,
        (
            Column(title="mechanism", cell=lambda a: a.mechanism),
            Column(title="tasks", cell=lambda a: str(a.tasks)),
            Column(title="mean difference, points", cell=points),
            Column(title="sd between tasks", cell=lambda a: f"{100 * a.between:.1f}"),
            Column(title="rank", cell=lambda a: f"{a.ranks[0]} to {a.ranks[1]}"),
        ),
        averages(rows),
    )


def progress_sheet() -> Sheet:
    """Return what is finished of every table, and what the rest will cost on this machine."""

    def cells(name: str) -> list[str]:
        request = request_cells(atlas_table(name))
        done, missing = len(request.row_cells), len(request.missing)
        by_mechanism: dict[str, list[float]] = {}
        for cell in request.row_cells:
            by_mechanism.setdefault(cell.mechanism, []).append(cell.cost_seconds)
        spent = f"{sum(map(sum, by_mechanism.values())) / 3600:.1f}"
        usual = {mechanism: median(seconds) for mechanism, seconds in by_mechanism.items()}
        other = median(usual.values()) if usual else 0.0  # of mechanisms without a training yet
        hours = sum(usual.get(mechanism, other) for mechanism, _, _ in request.missing) / 3600
        left = f"{hours:.1f}" if done else "unknown"
        return [name, f"{done} of {done + missing}", spent, left if missing else ""]

    titles = ("table", "trainings finished", "CPU hours spent", "CPU hours left")
    columns = (
        Column(title=title, cell=lambda row, n=number: row[n])
        for number, title in enumerate(titles)
    )
    caption = "One table: suffice reproduce TABLE --run --jobs 2 --publish"
    return sheet_of("The atlas", tuple(columns), [cells(name) for name in NAMES], caption=caption)


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


def nulls() -> Counter[str]:
    """Return what is said of Standard against itself, drawn again."""
    return Counter(
        row.verdict
        for row in standings()
        if row.mechanism == NULL and row.difference is not None and row.difference.low is not None
    )


ALPHA = 1.0 - LEVEL  # of each cell, over all looks and both sides
COLOURS = {SUFFICES: "#00855f", FAILS: "#b23a12", UNDECIDED: "#7a6a00"}
COLOURS |= {TOO_EASY: "#4b6a88", UNLEARNED: FAINT[0]}


def frontier(task: str, size: str, cost: str) -> Figure:
    """Draw test accuracy over a cost, "state" or "flops", with the names of what nothing beats.

    Colours are verdicts. The bars are the 95% intervals of each mean by itself; verdicts rest on
    differences seed by seed, whose intervals are narrower.
    """
    rows = [r for r in standings() if (r.task, r.size) == (task, size) and getattr(r, cost)]
    rows = [row for row in rows if not row.same_as]
    titles = {"state": "state of a layer after the input, bytes", "flops": "FLOPs over Standard's"}
    with style():
        figure, [[axes]] = blank(1, 1, width=7.2, height=4.4)
        for row in rows:
            low, mean, high = (
                row.quality.mean if end is None else end
                for end in (row.quality.low, row.quality.mean, row.quality.high)
            )
            axes.errorbar(
                getattr(row, cost),
                100 * mean,
                yerr=[[100 * (mean - low)], [100 * (high - mean)]],
                color=INK[0] if row.mechanism == BASELINE else COLOURS[row.verdict],
                marker="s" if row.mechanism == BASELINE else "o",
                linewidth=1.0,
            )
        if cost == "state":
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_xlabel(titles[cost])
        axes.set_ylabel("test accuracy, %")
        axes.set_title(f"{task}, {size}")
        axes.margins(0.12)
        _name_best(axes, rows, cost)
    return figure


def _name_best(axes: Axes, rows: Sequence[Standing], cost: str) -> None:
    """Write the names of Standard and of what no cheaper mechanism is as good as."""
    best, named = -1.0, []
    for row in sorted(rows, key=lambda row: (getattr(row, cost), -row.quality.mean)):
        if row.quality.mean > best or row.mechanism == BASELINE:
            named.append(row)
        best = max(best, row.quality.mean)
    points = {row.mechanism: (getattr(row, cost), 100 * row.quality.mean) for row in named}
    colours = [INK[0] if r.mechanism == BASELINE else COLOURS[r.verdict] for r in named]
    place_labels(axes, points, colours, [])


def matrix_figure(size: str) -> Figure:
    """Draw the matrix of one size."""
    rows = [row for row in standings() if row.size == size and row.mechanism != BASELINE]
    tasks = [task for task in TASKS if any(row.task == task for row in rows)]
    names = list(dict.fromkeys(row.mechanism for row in rows))
    with style():
        height = 1.0 + 0.23 * len(names)
        figure, [[axes]] = blank(1, 1, width=2.4 + 0.72 * len(tasks), height=height)
        for row in rows:
            x, y = tasks.index(row.task), names.index(row.mechanism)
            known = row.difference is not None and row.difference.low is not None
            colour = COLOURS[row.verdict] if known else FAINT[0]
            faint = {SUFFICES: 0.25, FAILS: 0.25}.get(row.verdict, 0.12) if known else 0.04
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
`suffice list` that a model can have, on every task, from up to five seeds, against Standard with
four heads. Trainings are short and models are small: what stands here is about learning with
little, and larger models may differ. The margin is one point of test accuracy on every task. Each
cell is judged by itself, at 95% over all the looks that adding seeds takes. Learning rates are the
same for all mechanisms of a size. The trainings shared the machine and were paused for others, so
no time of theirs is compared here.
"""


def _chances(rows: Sequence[Standing]) -> str:
    """State how many cells may be decided falsely, and what is said of Standard against itself."""
    judged = [r for r in rows if r.difference and r.difference.low is not None and not r.same_as]
    text = (
        f"{len(judged)} cells have the seeds for a verdict. If all were exactly at the margin in "
        f"truth, {ALPHA * len(judged):.1f} would be decided by chance alone, half of them as "
        "sufficient."
    )
    if said := nulls():
        words = " and ".join(f"{count} times {verdict}" for verdict, count in said.items())
        text += (
            f" The row `{NULL}` is a check: it is Standard itself, trained again from other seeds, "
            f"so that `does not suffice` would be a false alarm. It is {words}."
        )
    return text


def windows(size: str) -> Sheet:
    """Return how many tokens the windows of a size's tables have: names alone do not tell."""
    rows = [row for row in standings() if row.size == size]
    tasks = [task for task in TASKS if any(row.task == task for row in rows)]
    sizes: dict[str, dict[str, str]] = {}
    for task in tasks:
        chosen = recipe(f"{NAME}_{task}_{size}")
        for mechanism in (BASELINE, *settings(chosen.model.length)):
            name = label(mechanism, chosen.model.length)
            if any((row.mechanism, row.task) == (name, task) for row in rows):
                pattern = chosen.specs(mechanism, HEADS)[0].pattern.to_json()
                sizes.setdefault(name, {})[task] = ", ".join(map(str, _windows(pattern)))

    def column(task: str) -> Column:
        return Column(title=task, cell=lambda name: sizes[name].get(task, ""))

    shown = [name for name, by_task in sizes.items() if any(by_task.values())]
    columns = (Column(title="mechanism", cell=str), *map(column, tasks))
    return sheet_of("Windows, tokens", columns, shown)


def _windows(pattern: Mapping[str, Any]) -> Iterator[int]:
    """Yield the sizes of the windows in the JSON form of a pattern; blocks count no tokens."""
    if pattern["name"] == "Window":
        yield pattern["size"]
    for part in pattern.get("parts", ()):
        yield from _windows(part)


def page() -> str:
    """Return docs/atlas.md for what is published now."""
    rows = standings()
    lines = [HEAD, "## What was run", "", *markdown(_published_sheet()), "", _chances(rows)]
    for size in SIZES:
        of = [row for row in rows if row.size == size.name]
        if not of:
            continue
        lines += ["", f"## {size.title}", "", f"![Matrix](atlas/matrix-{size.name}.svg)", ""]
        shown = matrix(size.name)
        lines += [*markdown(shown), "", shown.caption, "", "### Windows, tokens", ""]
        lines += markdown(windows(size.name))
        for title, recalls in (("Over tasks of real data", False), ("Over tasks of recall", True)):
            chosen = [row for row in of if (row.task in RECALL) is recalls]
            if averages(chosen):
                lines += ["", f"### {title}", "", *markdown(average_sheet(chosen, title))]
        lines += ["", "### Quality and cost", ""]
        lines += [f"![{stem}](atlas/{stem}.svg)" for stem in _drawn(of)]
    return "\n".join(lines) + "\n"


def _drawn(rows: Sequence[Standing]) -> list[str]:
    """Return the names of the figures of some tables: over state where they keep one."""
    drawn = []
    for task, size in dict.fromkeys((row.task, row.size) for row in rows):
        cost = (
            "state"
            if any(r.state for r in rows if r.task == task and r.mechanism == BASELINE)
            else "flops"
        )
        drawn.append(f"{cost}-{task}-{size}")
    return drawn


def _published_sheet() -> Sheet:
    contents = [(name, published(atlas_table(name))) for name in NAMES]

    def cells(name: str, content: Published) -> list[str]:
        results = content.results
        request = request_cells(atlas_table(name))
        done = f"{len(request.row_cells)} of {len(request.plan.cells)}"
        (standard, *_) = results.select(BASELINE, HEADS)
        size = f"{standard.parameters_model:,}"
        return [results.title, size, done, machine_line(results.machine)]

    rows = [cells(name, content) for name, content in contents if content is not None]
    titles = ("table", "parameters of Standard", "trainings", "machine")
    columns = (
        Column(title=title, cell=lambda row, n=number: row[n])
        for number, title in enumerate(titles)
    )
    return sheet_of("What was run", tuple(columns), rows)


def write_page() -> Path:
    """Write docs/atlas.md and its figures, and return the page's file."""
    docs = path_of("x").parents[2] / "docs"
    if not docs.is_dir():
        raise DataError("docs/atlas.md belongs to a checkout of the source; write it there.")
    standings.cache_clear()
    rows = standings()
    for size in dict.fromkeys(row.size for row in rows):
        stem = f"matrix-{size}"
        write_atomic(docs / NAME / f"{stem}.svg", svg(matrix_figure(size), stem))
        for drawn in _drawn([row for row in rows if row.size == size]):
            cost, task, _ = drawn.split("-")
            write_atomic(docs / NAME / f"{drawn}.svg", svg(frontier(task, size, cost), drawn))
    write_atomic(docs / f"{NAME}.md", page())
    return docs / f"{NAME}.md"
