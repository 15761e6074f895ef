"""`suffice.verdict`: which of several results of other programs suffices."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, islice
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from suffice.comparison import report
from suffice.comparison.console import WIDTH, document, print_report, print_screen
from suffice.comparison.external.looks import Look, check_looks, keep, opened
from suffice.comparison.external.pairing import comparisons, mean_over_tasks
from suffice.comparison.external.readers import (
    COMPARISON,
    KINDS,
    RESULTS,
    Question,
    RowNames,
    all_under,
    kind_of,
    names_apart,
    parse_columns,
    read,
)
from suffice.comparison.metrics import Margin
from suffice.comparison.report.page import notebook_html
from suffice.comparison.report.sheet import Line, Sheet
from suffice.comparison.report.tables import interval_of
from suffice.comparison.results import Results, read_results
from suffice.comparison.scores import MIN_SEEDS, Scores, metric_in
from suffice.comparison.sentence import (
    decision,
    interval,
    notes,
    outcome_of,
    sentence,
    verdict_record,
)
from suffice.comparison.sufficiency import FAILS, LEVEL, SUFFICES, TOO_EASY, UNDECIDED, UNLEARNED
from suffice.comparison.two_way_interval import estimate_unpaired
from suffice.comparison.verdict import (
    INSUFFICIENT,
    NOTHING,
    OPEN,
    SUFFICIENT,
    Verdict,
    judge,
    judge_together,
)
from suffice.errors import ConfigError, check_known
from suffice.utils.statistics import Summary

Judged = tuple[Results, Verdict]

MEAN_OF_TASKS = (
    "The mean over tasks counts each alike and says nothing of other tasks. It decides, unless a "
    "single task is shown not to suffice."
)


@dataclass(frozen=True, kw_only=True)
class ExternalVerdict:
    """The verdict on results of other programs; printing it prints its report.

    Args:
        judged: each task and metric with its verdict.
        over_tasks: the mean over tasks by each metric, with its verdict; empty for one task.
        reruns: exit code and sentence where two groups of reruns judge the verdict itself.
    """

    judged: tuple[Judged, ...]
    over_tasks: tuple[Judged, ...] = ()
    reruns: tuple[int, str] | None = None

    @property
    def deciding(self) -> tuple[Judged, ...]:
        """The comparisons that decide: means over tasks where there are any."""
        return self.over_tasks or self.judged

    @property
    def every(self) -> tuple[Judged, ...]:
        """All comparisons, the means over tasks first."""
        return (*self.over_tasks, *self.judged)

    @cached_property
    def words(self) -> dict[str, str]:
        """What is said of each name over all that decides, and all tasks."""
        names = [c.mechanism for c in self.deciding[0][1].comparisons]
        return {n: w if (w := self._word(n)) in (SUFFICES, FAILS) else UNDECIDED for n in names}

    def _word(self, name: str) -> str:
        """Return whether a name suffices in all that decides, and fails nowhere."""

        def of(verdict: Verdict) -> str:
            return next(c.sufficiency for c in verdict.comparisons if c.mechanism == name)

        deciding = [of(verdict) for _, verdict in self.deciding]
        if FAILS in [*deciding, *(of(verdict) for _, verdict in self.judged)]:
            return FAILS
        return next((word for word in deciding if word != SUFFICES), SUFFICES)

    @property
    def code(self) -> int:
        """Exit code, as `Verdict.code`; of reruns, 0 if they are not told apart, 10 if they are."""
        if self.reruns is not None:
            return self.reruns[0]
        if len(self.judged) == 1:
            return self.judged[0][1].code
        words = {self._word(name) for name in self.words}
        if SUFFICES in words:
            return SUFFICIENT
        if words <= {UNLEARNED, TOO_EASY}:
            return NOTHING
        return INSUFFICIENT if words == {FAILS} else OPEN

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        if self.reruns is not None:
            return self.reruns[1]
        if len(self.judged) == 1:
            results, verdict = self.judged[0]
            return sentence(verdict, results)
        each = "; ".join(f"{name}: {word}" for name, word in self.words.items())
        parts = [f"{_named(r)}, {sentence(v, r)}" for r, v in self.deciding]
        failing = [
            f"{c.mechanism} does not suffice on {results.task} by {results.metric}."
            for results, verdict in (self.judged if self.over_tasks else ())
            for c in verdict.comparisons
            if c.sufficiency == FAILS
        ]
        return " ".join([f"{each}.", *parts, *failing])

    def print(self, console: Console, *, whole: bool = False) -> None:
        """Print sentence, table and notes; all of them if `whole`."""
        if self.reruns is not None:
            console.print(Text(self.sentence))
        elif len(self.judged) == 1:
            print_report(*self.judged[0], console, whole=whole)
        else:
            every = [note for pair in self.judged for note in notes(pair[1], pair[0])]
            points = [*([MEAN_OF_TASKS] if self.over_tasks else []), *dict.fromkeys(every)]
            sheet = self.sheet(whole=whole)
            print_screen(self.sentence, sheet, points, console, whole=whole)

    def sheet(self, *, whole: bool = False) -> Sheet:
        """Return a table with a line for each task, metric and name, the means first."""
        lines: list[Line] = []
        for results, verdict in self.every:
            metric, task = verdict.metric, results.task or "-"
            for comparison in verdict.comparisons:
                found = comparison.difference
                cells = (
                    *(task, results.metric, comparison.mechanism),
                    "-" if found is None else metric.difference(found.mean),
                    interval_of(found, metric.difference),
                    metric.margin(verdict.margin),
                    decision(comparison) if whole else outcome_of(comparison),
                )
                starts_group = bool(lines) and lines[-1].cells[0] != task
                lines.append(Line(cells=cells, starts_group=starts_group))
        baseline = self.judged[0][1].baseline
        caption = (
            f"Against {baseline}; plus is better. Several lines are corrected together (Holm)"
            + (", the means apart from the tasks." if self.over_tasks else ".")
        )
        return Sheet(
            title=f"Differences to {baseline}",
            columns=("task", "metric", "name", "difference", "interval", "margin", "verdict"),
            words=("metric", "name", "verdict"),
            lines=tuple(lines),
            caption=caption,
        )

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=WIDTH)
        self.print(console)
        return console.file.getvalue().rstrip()  # type: ignore[attr-defined]

    def _repr_html_(self) -> str:
        return "\n".join(notebook_html(results, verdict) for results, verdict in self.every)

    def write(self, folder: Path) -> list[Path]:
        """Write a page with pictures for each comparison, and return the pages."""
        alone = len(self.every) == 1
        return [
            report.write_report(results, verdict, folder if alone else folder / _named(results))
            for results, verdict in self.every
        ]

    def to_json(self, folder: Path | None = None) -> dict[str, Any]:
        """Return the verdict as plain values, see `docs/verdict.md`."""
        records, over_tasks = (
            [verdict_record(verdict, results) for results, verdict in judged]
            for judged in (self.judged, self.over_tasks)
        )
        return document(
            records, self.code, self.sentence, folder, words=self.words, over_tasks=over_tasks
        )


def _named(results: Results) -> str:
    return f"{results.task} by {results.metric}" if results.task else f"by {results.metric}"


def _judged(every: Sequence[Results], failures: float | None) -> ExternalVerdict:
    by_metric: dict[str, list[Results]] = {}
    for results in every:
        by_metric.setdefault(results.metric, []).append(results)
    means = [mean_over_tasks(of_metric) for of_metric in by_metric.values() if len(of_metric) > 1]
    known = [mean for mean in means if mean is not None]
    if len(known) < len(by_metric):
        known = []
    return ExternalVerdict(
        judged=tuple(zip(every, judge_together(every, failures=failures), strict=True)),
        over_tasks=tuple(zip(known, judge_together(known, failures=failures), strict=True)),
    )


def verdict(
    results: Mapping[str, Any] | str | Path | Sequence[str | Path],
    *,
    margin: float | str | Mapping[str, float | str] | None = None,
    baseline: str | None = None,
    better: str | None = None,
    relative: bool = False,
    metrics: Sequence[str] = (),
    percent: bool = False,
    failures: float | None = None,
    chance: float | None = None,
    paired: bool = False,
    kind: str | None = None,
    columns: str | Mapping[str, str] | None = None,
    groups: str | None = None,
    looks: Sequence[int] = (),
    state: str | Path | None = None,
    null: bool = False,
) -> ExternalVerdict:
    """Say which of several results suffices: whether a difference to the first is real.

    The results may be of any program: only their scores are read. Every name is compared with the
    baseline by the interval of `suffice.compare`, over seeds and rows as far as both are there.

    Args:
        results: mapping from names to files, folders, tables or arrays; or files and folders,
            named by the part in which their paths differ. A folder of `suffice compare` stands
            alone. An array of [seeds, rows] is paired by its places; a list of [seeds] is not,
            unless `paired` says so; a DataFrame has columns seed, row and score, see `columns`.
        margin: loss of a metric that still suffices, for all or by metric: a fraction of a share,
            0.01 by default; of other metrics in their unit, without a default. As a string, with a
            unit: "1 point", "0.02 nats", "2%".
        baseline: name that all others are compared with; None takes the first.
        better: "higher" or "lower" where neither the source nor the metric's name tells.
        relative: whether the margin of a metric that is not a share is a fraction of its value.
        metrics: metrics to judge by; the first that all have by default.
        percent: whether scores are in percent.
        failures: largest acceptable rate of failed trainings; only seeds that rule out a higher
            one suffice.
        chance: share that a guess gets.
        paired: whether runs without labels of seeds are paired in their order.
        kind: kind of the files, see `suffice.comparison.external.readers.KINDS`; found by default.
        columns: column of each role, such as {"seed": "run", "score": "acc"}.
        groups: column whose value says which rows belong together; they are the samples then.
        looks: numbers of seeds at which the verdict is looked at, declared before the first.
        state: file that keeps the looks; it is written.
        null: whether both names are reruns of one thing, on which the verdict itself is judged.

    Raises:
        ConfigError: if names, margins or options do not fit.
        DataError: if a file cannot be read, or runs do not fit together.

    Example:
        >>> found = verdict(
        ...     {"old": [0.911, 0.913, 0.909, 0.910], "new": [0.912, 0.910, 0.913, 0.911]},
        ... )
        >>> found.code, found.words
        (0, {'new': 'suffices'})
    """
    by_metric = margin if isinstance(margin, Mapping) else {} if margin is None else {"": margin}
    question = Question(
        metrics=tuple(metrics),
        better=better,
        percent=percent,
        failures=failures,
        margins={name: Margin.of(size) for name, size in by_metric.items()},
        relative=relative,
        baseline=baseline,
        chance=chance,
        paired=paired,
        kind=kind,
        columns=parse_columns(columns, groups),
        looks=tuple(looks),
        state=state,
        null=null,
        command="suffice.verdict(...)",
    )
    if isinstance(results, Mapping):
        return judge_all([(str(name), value) for name, value in results.items()], question)
    items = [results] if isinstance(results, str | Path) else results
    return judge_all([(None, item) for item in items], question)


def judge_all(items: Sequence[tuple[str | None, Any]], question: Question) -> ExternalVerdict:
    """Read what is named and judge it."""
    paths = [Path(value) if isinstance(value, str | Path) else None for _, value in items]
    if question.kind is not None:
        check_known("kind", question.kind, KINDS)
        if None in paths:
            raise ConfigError(f"kind={question.kind} is of files; leave it out for arrays.")
    kinds = [None if path is None else question.kind or kind_of(path) for path in paths]
    if len(set(kinds)) > 1:
        mixed = ", ".join(sorted(kind or "array" for kind in set(kinds)))
        raise ConfigError(f"mixed kinds of results ({mixed}); give the same kind under every name.")
    if COMPARISON in kinds:
        return _judge_comparison(paths, question)
    row_names, sources = RowNames(), []
    names = [name for name, _ in items]
    short_names = names_apart(
        path or Path(str(name)) for path, name in zip(paths, names, strict=True)
    )
    for (name, value), short, kind in zip(items, short_names, kinds, strict=True):
        of_item = read(name or short, value, kind, question, row_names)
        alone = name is None or len(items) == 1
        sources += of_item if alone else [all_under(name, of_item)]
    check_looks(question)
    every = comparisons(sources, question, row_names)
    if question.null:
        if len(every) > 1:
            raise ConfigError("--null: name one metric and give one task.")
        judged = _judged(every, question.failures)
        return replace(judged, reruns=judge_reruns(*judged.judged[0]))
    if question.state is None:
        return _judged(every, question.failures)
    plan, seeds, scores = opened(Path(question.state), every)
    judged = _judged(every, question.failures)
    look = Look(seeds=seeds, scores=scores, code=judged.code, sentence=judged.sentence)
    keep(Path(question.state), plan, look)
    return judged


UNUSED = ("columns", "better", "percent", "chance", "paired", "null", "looks", "state")
"""Fields of a question that are not asked of a comparison of ours."""


def _judge_comparison(paths: Sequence[Path | None], question: Question) -> ExternalVerdict:
    path, *others = paths
    if others:
        raise ConfigError(
            "a folder of `suffice compare` is judged alone, as it holds several mechanisms; name "
            "one folder."
        )
    if unused := [name for name in UNUSED if getattr(question, name)]:
        raise ConfigError(
            f"{', '.join(unused)}: a comparison of ours knows its seeds, rows and metrics, and "
            "takes margin, baseline and metric alone; leave out the rest."
        )
    if len(question.metrics) > 1:
        raise ConfigError(
            f"{', '.join(question.metrics)}: a comparison of ours is judged by one metric."
        )
    results = read_results(path / RESULTS if path.is_dir() else path)
    if question.baseline is not None:
        check_known("baseline", question.baseline, dict(results.pairs()))
        results = replace(results, baseline=question.baseline)
    metric = next(iter(question.metrics), None)
    measured = metric_in(results, metric)
    given = question.margins.get(measured.name, question.margins.get(""))
    margin, relative = (
        (None, False) if given is None else given.for_metric(measured.name, measured.kind)
    )
    if relative or (question.relative and measured.kind == "value"):
        raise ConfigError(f"{measured.name} has a margin in its own unit; leave out %.")
    verdict = judge(results, margin=margin, metric=metric, failures=question.failures)
    return ExternalVerdict(judged=((results, verdict),))


SPLITS = 1000  # of the reruns into two groups, at most
SCORES = 10**8  # of all splits together, at most


def judge_reruns(results: Results, verdict: Verdict) -> tuple[int, str]:
    """Return an exit code and a sentence about two groups of reruns of one thing.

    All reruns are split again into two groups, in every way or in 1,000 ways, and each split is
    tested at 5%. Where nothing but chance differs, about 5% of the splits are told apart. The code
    is 10 if the groups that were given are told apart, else 0.
    """
    names = [name for name, _ in results.pairs()]
    scores = Scores(results, verdict.metric)
    tables = [scores.table(n, 0, list(scores.values(n, 0))) for n in names]
    if len(names) != 2 or min(map(len, tables)) < MIN_SEEDS:  # noqa: PLR2004
        raise ConfigError(f"--null: give two groups of {MIN_SEEDS} reruns at least of one thing.")
    estimated = estimate_unpaired(tables[1], tables[0])
    runs = np.concatenate(tables)
    alpha = 1.0 - LEVEL
    p_values = [
        float(estimate_unpaired(*split).p_value()) for split in _splits(runs, len(tables[1]))
    ]
    apart = sum(p < alpha for p in p_values)
    p_value, metric = float(estimated.p_value()), verdict.metric
    mean, half = float(estimated.mean), float(estimated.half_width(alpha))
    smallest = metric.in_unit(metric.margin(half))
    chance = (
        f"of {len(p_values):,} splits of all {len(runs)} reruns into two groups, {apart:,} "
        f"({apart / len(p_values):.0%}) are told apart at 5%"
    )
    summary = Summary(n=estimated.seeds, mean=mean, sd=None, low=mean - half, high=mean + half)
    difference = interval(summary, LEVEL, metric)
    if p_value < alpha:
        return INSUFFICIENT, (
            f"the reruns of {names[0]} and {names[1]} differ by more than chance: {difference}, "
            f"p = {p_value:.2g} without pairing; {chance}. Something else than the seed changed "
            "between them, so a verdict on such runs is not to be trusted."
        )
    return SUFFICIENT, (
        f"the reruns of {names[0]} and {names[1]} are not told apart: {difference}, p = "
        f"{p_value:.2g} without pairing; {chance}. These runs tell a margin of about "
        f"{smallest}, no smaller one."
    )


def _splits(runs: np.ndarray, first: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    count, most = len(runs), max(20, min(SPLITS, SCORES // runs.size))
    if comb(count, first) <= most:
        chosen = map(list, combinations(range(count), first))
    else:
        rng = np.random.default_rng(0)
        chosen = islice(iter(lambda: list(rng.permutation(count)[:first]), None), most)
    for group in chosen:
        yield runs[group], np.delete(runs, group, axis=0)
