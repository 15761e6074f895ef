"""`suffice.verdict`: which of several results of other programs suffices."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from suffice.comparison.external.pairing import Question, comparisons, mean_over_tasks
from suffice.comparison.external.readers import (
    COMPARISON,
    KINDS,
    RESULTS,
    TABLE,
    RowNames,
    Run,
    Source,
    all_under,
    kind_of,
    names_apart,
    parse_columns,
    read,
    read_records,
)
from suffice.comparison.metrics import Margin
from suffice.comparison.report.page import notebook_html
from suffice.comparison.report.sheet import Column, Sheet, sheet_of
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
    Comparison,
    Verdict,
    judge,
    judge_together,
)
from suffice.errors import ConfigError, DataError, unknown
from suffice.utils.statistics import Summary

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

    judged: tuple[tuple[Results, Verdict], ...]
    over_tasks: tuple[tuple[Results, Verdict], ...] = ()
    reruns: tuple[int, str] | None = None

    @property
    def deciding(self) -> tuple[tuple[Results, Verdict], ...]:
        """The comparisons that decide: means over tasks where there are any."""
        return self.over_tasks or self.judged

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
        lines = [
            (results, verdict, comparison)
            for results, verdict in (*self.over_tasks, *self.judged)
            for comparison in verdict.comparisons
        ]

        def column(title: str, text: Callable[..., str], *, words: bool = False) -> Column:
            return Column(title=title, cell=lambda line: text(*line), words=words)

        def ends(_: Results, verdict: Verdict, comparison: Comparison) -> str:
            found = comparison.difference
            if found is None or found.low is None:
                return "-"
            return "[{}, {}]".format(*map(verdict.metric.difference, (found.low, found.high)))

        def difference(_: Results, verdict: Verdict, comparison: Comparison) -> str:
            found = comparison.difference
            return "-" if found is None else verdict.metric.difference(found.mean)

        def margin(_: Results, verdict: Verdict, __: Comparison) -> str:
            return verdict.metric.margin(verdict.margin)

        word = decision if whole else outcome_of
        columns = (
            column("task", lambda results, _, __: results.task or "-"),
            column("metric", lambda results, _, __: results.metric, words=True),
            column("name", lambda _, __, comparison: comparison.mechanism, words=True),
            column("difference", difference),
            column("interval", ends),
            column("margin", margin),
            column("verdict", lambda _, __, comparison: word(comparison), words=True),
        )
        baseline = self.judged[0][1].baseline
        caption = (
            f"Against {baseline}; plus is better. Several lines are corrected together (Holm)"
            + (", the means apart from the tasks." if self.over_tasks else ".")
        )
        return sheet_of(
            f"Differences to {baseline}",
            columns,
            lines,
            group=lambda line: line[0].task,
            caption=caption,
        )

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=WIDTH)
        self.print(console)
        return console.file.getvalue().rstrip()  # type: ignore[attr-defined]

    def _repr_html_(self) -> str:
        every = (*self.over_tasks, *self.judged)
        return "\n".join(notebook_html(results, verdict) for results, verdict in every)

    def write(self, folder: Path) -> list[Path]:
        """Write a page with pictures for each comparison, and return the pages."""
        every = (*self.over_tasks, *self.judged)
        return [
            report.write_report(
                results, verdict, folder if len(every) == 1 else folder / _named(results)
            )
            for results, verdict in every
        ]

    def to_json(self, folder: Path | None = None) -> dict[str, Any]:
        """Return the verdict as plain values, see `docs/verdict.md`."""
        over_tasks = [verdict_record(verdict, results) for results, verdict in self.over_tasks]
        records = [verdict_record(verdict, results) for results, verdict in self.judged]
        return document(
            records, self.code, self.sentence, folder, words=self.words, over_tasks=over_tasks
        )


def _named(results: Results) -> str:
    return f"{results.task} by {results.metric}" if results.task else f"by {results.metric}"


def _judge_sources(
    sources: Sequence[Source], question: Question, row_names: RowNames, state: str | Path | None
) -> ExternalVerdict:
    check_looks(question.looks, state)
    every = comparisons(sources, question, row_names)
    if question.null:
        if len(every) > 1:
            raise ConfigError("--null: name one metric and give one task.")
        judged = _judged(every, question.failures)
        return replace(judged, reruns=judge_reruns(*judged.judged[0]))
    if state is None:
        return _judged(every, question.failures)
    plan, seeds, scores = opened(Path(state), every)
    judged = _judged(every, question.failures)
    look = Look(seeds=seeds, scores=scores, code=judged.code, sentence=judged.sentence)
    keep(Path(state), plan, look)
    return judged


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
        looks=tuple(looks),
        null=null,
        command="suffice.verdict(...)",
    )
    named = dict(columns) if isinstance(columns, Mapping) else parse_columns(columns)
    named |= {} if groups is None else {"group": groups}
    return judge_all(_items(results), question, kind=kind, columns=named, state=state)


def _items(results: Any) -> list[tuple[str | None, Any]]:
    if isinstance(results, Mapping):
        return [(str(name), value) for name, value in results.items()]
    return [(None, one) for one in ([results] if isinstance(results, str | Path) else results)]


def judge_all(
    items: Sequence[tuple[str | None, Any]],
    question: Question,
    *,
    kind: str | None = None,
    columns: Mapping[str, str],
    state: str | Path | None = None,
) -> ExternalVerdict:
    """Read what is named and judge it."""
    if kind is not None and kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    kinds = [kind or kind_of(Path(value)) if _is_path(value) else None for _, value in items]
    if len(set(kinds)) > 1:
        raise ConfigError(
            f"mixed kinds of results ({', '.join(sorted(str(k or 'array') for k in set(kinds)))}); "
            "give the same kind under every name."
        )
    if COMPARISON in kinds:
        return _judge_comparison(items, question, columns, state)
    row_names = RowNames()
    paths = [Path(value) if _is_path(value) else Path(str(name)) for name, value in items]
    short_names = names_apart(paths) if items else []
    sources = []
    for (name, value), short, of_value in zip(items, short_names, kinds, strict=True):
        if of_value is None:
            of_item = sources_of_array(name or short, value, columns, question, row_names)
        else:
            of_item = read(
                Path(value),
                name or short,
                of_value,
                columns=columns,
                metrics=question.metrics if of_value == TABLE else (),
                row_names=row_names,
            )
        alone = name is None or len(items) == 1
        sources += of_item if alone else [all_under(str(name), of_item)]
    return _judge_sources(sources, question, row_names, state)


def _is_path(value: object) -> bool:
    return isinstance(value, str | Path)


def _judge_comparison(
    items: Sequence[tuple[str | None, Any]],
    question: Question,
    columns: Mapping[str, str],
    state: str | Path | None,
) -> ExternalVerdict:
    if len(items) > 1:
        raise ConfigError(
            "a folder of `suffice compare` is judged alone, as it holds several mechanisms; name "
            "one folder."
        )
    unused = {
        "columns": columns,
        "better": question.better,
        "percent": question.percent,
        "chance": question.chance,
        "paired": question.paired,
        "null": question.null,
        "looks": question.looks,
        "state": state,
    }
    if unusable := [name for name, value in unused.items() if value]:
        raise ConfigError(
            f"{', '.join(unusable)}: a comparison of ours knows its seeds, rows and metrics, and "
            "takes margin, baseline and metric alone; leave out the rest."
        )
    path = Path(items[0][1])
    results = read_results(path / RESULTS if path.is_dir() else path)
    if question.baseline is not None:
        if question.baseline not in (names := dict(results.pairs())):
            raise unknown("baseline", question.baseline, names)
        results = replace(results, baseline=question.baseline)
    if len(question.metrics) > 1:
        raise ConfigError(
            f"{', '.join(question.metrics)}: a comparison of ours is judged by one metric."
        )
    metric = question.metrics[0] if question.metrics else None
    measured = metric_in(results, metric)
    given = question.margins.get(measured.name, question.margins.get(""))
    margin, relative = (
        (None, False) if given is None else given.for_metric(measured.name, measured.kind)
    )
    if relative or (question.relative and measured.kind == "value"):
        raise ConfigError(f"{measured.name} has a margin in its own unit; leave out %.")
    verdict = judge(results, margin=margin, metric=metric, failures=question.failures)
    return ExternalVerdict(judged=((results, verdict),))


def sources_of_array(
    name: str, value: Any, columns: Mapping[str, str], question: Question, row_names: RowNames
) -> list[Source]:
    """Return the runs of an array [seeds, rows], a list [seeds] or a DataFrame."""
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        names = [str(column) for column in value.columns]
        rows = enumerate(value.to_dict("records"), 1)
        return read_records(name, name, names, rows, columns, question.metrics, row_names)
    if columns:
        raise ConfigError(f"{', '.join(columns)}: columns are of tables, and {name} is an array.")
    try:
        scores = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} is not an array of numbers ({error!s:.200}).") from error
    if scores.ndim not in (1, 2) or not scores.size:
        raise DataError(f"{name} has shape {scores.shape}; give [seeds] or [seeds, rows].")
    if not np.isfinite(scores).all():
        raise DataError(f"{name} has scores that are not finite; leave out those runs.")
    metric = question.metrics[0] if question.metrics else "score"
    rows = scores.shape[1] if scores.ndim == 2 else 0  # noqa: PLR2004
    runs = [
        Run(
            scores={metric: np.atleast_1d(of_seed)},
            seed=str(seed) if rows else None,
            rows=np.arange(rows) if rows else None,
        )
        for seed, of_seed in enumerate(scores)
    ]
    return [Source(name=name, path="an array", kind="array", runs=runs)]


SPLITS = 1000  # of the reruns into two groups, at most
SCORES = 10**8  # of all splits together, at most


def judge_reruns(results: Results, verdict: Verdict) -> tuple[int, str]:
    """Return an exit code and a sentence about two groups of reruns of one thing.

    All reruns are split again into two groups, in every way or in 1,000 ways, and each split is
    tested at 5%. Where nothing but chance differs, about 5% of the splits are told apart.

    Returns:
        0 if the groups that were given are not told apart, 10 if they are, and why that matters.
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
