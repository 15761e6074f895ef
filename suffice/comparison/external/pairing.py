"""Runs of other programs as comparisons: rows and seeds paired, and what was left out counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from suffice.comparison.answers import Answers, from_scores
from suffice.comparison.external.readers import Question, RowNames, Run, Source, Values
from suffice.comparison.metrics import HIGHER, LOWER, MARGIN
from suffice.comparison.results import (
    ROWS_ALONE,
    SEEDS_ALONE,
    SEEDS_AND_ROWS,
    UNPAIRED,
    Cell,
    External,
    Results,
)
from suffice.comparison.scores import MIN_ROWS, MIN_SEEDS
from suffice.comparison.sentence import several
from suffice.errors import ConfigError, DataError, check_known

FALLING = {
    *("loss", "nll", "perplexity", "ppl", "bpb", "bpc", "bits", "error", "err", "rmse", "mae"),
    *("mse", "wer", "cer", "brier", "ece", "latency", "seconds", "regret"),
}
RISING = {
    *("accuracy", "acc", "f1", "bleu", "rouge", "auc", "r2", "recall", "precision", "match"),
    *("correct", "reward", "mcc", "chrf", "pass"),
}
"""Words in names of metrics that tell which direction is better."""


def comparisons(
    sources: Sequence[Source], question: Question, row_names: RowNames
) -> list[Results]:
    """Return a comparison for each task and metric, tasks in the order of the baseline's."""
    names = [source.name for source in sources]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ConfigError(f"two inputs are called {twice[0]!r}; rename one, as NAME=PATH.")
    if len(names) < 2:  # noqa: PLR2004
        raise ConfigError(
            f"pass at least two results to compare, not {', '.join(names) or 'none'}."
        )
    baseline = question.baseline or names[0]
    check_known("baseline", baseline, names)
    ordered = sorted(sources, key=lambda source: source.name != baseline)
    tasks = [task for task in ordered[0].tasks if all(task in s.tasks for s in ordered)]
    if not tasks:
        raise DataError(
            f"{' and '.join(names)} share no task: "
            + "; ".join(f"{s.name} has {', '.join(s.tasks)}" for s in ordered)
        )
    lost = sorted({task for source in ordered for task in source.tasks} - set(tasks))
    notes = list(dict.fromkeys(note for source in ordered for note in source.notes))
    if lost:
        notes.append(f"Tasks that not all have were left out: {', '.join(lost)}.")
    compared, empty = [], []
    for task in tasks:
        of_task = {s.name: [run for run in s.runs if run.task == task] for s in ordered}
        for metric in _metrics(of_task, question.metrics, task):
            if question.percent:
                of_task = _from_percent(of_task, metric)
            better = _direction(metric, ordered, of_task, question.better)
            if better == HIGHER:
                _refuse_percent_next_to_shares(metric, of_task)
            table = _Table(of_task, metric, any(s.folds for s in ordered), row_names)
            empty.append(table.empty())
            compared.append(_results(table, task, better, question, notes, ordered))
    if None not in empty:  # tasks on which all agree may stand next to others
        raise DataError(str(empty[0]))
    return compared


def _metrics(runs: dict[str, list[Run]], wanted: tuple[str, ...], task: str) -> tuple[str, ...]:
    every = [run for of_name in runs.values() for run in of_name]
    shared = [m for m in every[0].scores if all(m in run.scores for run in every)]
    where = f" of {task}" if task else ""
    for name in wanted:
        check_known(f"metric{where}", name, shared)
    if not shared:
        raise DataError(f"no metric{where} is in all runs; name files of the same one.")
    return wanted or (shared[0],)


def _direction(
    metric: str, sources: Sequence[Source], runs: dict[str, list[Run]], better: str | None
) -> str:
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    by_name = {LOWER: words & FALLING, HIGHER: words & RISING}
    directions = {s.better[metric] for s in sources if metric in s.better}
    directions = directions or {way for way, hits in by_name.items() if hits}
    if better is not None and directions == {HIGHER, LOWER} - {better}:
        raise ConfigError(
            f"--better {better}: of {metric} the {directions.pop()} is better; leave the option "
            "out, or give the metric another name."
        )
    if better is not None or len(directions) == 1:
        return better or directions.pop()
    values = [run.scores[metric] for of_name in runs.values() for run in of_name]
    if all(map(_is_share, values)):
        return HIGHER
    _refuse_percent_next_to_shares(metric, runs)
    largest = max(float(value.max()) for value in values)
    percent = f"{largest:g} looks like percent: --percent; else " if largest <= 100.0 else ""  # noqa: PLR2004
    raise ConfigError(
        f"{metric} is not a share from 0 to 1; {percent}say --better higher or --better lower."
    )


def _from_percent(runs: dict[str, list[Run]], metric: str) -> dict[str, list[Run]]:
    if not all(_is_share(run.scores[metric] / 100) for of in runs.values() for run in of):
        raise ConfigError(f"--percent: {metric} is not from 0 to 100 in all runs.")
    return {
        name: [replace(run, scores=run.scores | {metric: run.scores[metric] / 100}) for run in of]
        for name, of in runs.items()
    }


PERCENT_OVER_SHARE = (50.0, 200.0)  # ratio of two means in which one is likely in percent


def _refuse_percent_next_to_shares(metric: str, runs: dict[str, list[Run]]) -> None:
    """Refuse scores that are shares from 0 to 1 under one name and look like percent elsewhere."""
    scores = {name: np.concatenate([r.scores[metric] for r in runs[name]]) for name in runs}
    shares = {name: float(v.mean()) for name, v in scores.items() if _is_share(v)}
    others = {n: float(v.mean()) for n, v in scores.items() if 1.0 < v.min() <= v.max() <= 100.0}
    least, most = PERCENT_OVER_SHARE
    for name, mean in others.items():
        for of_shares, share in shares.items():
            if least * share < mean < most * share:
                raise DataError(
                    f"the mean {metric} is {share:.3g} in {of_shares} and {mean:.3g} in {name}; "
                    "write both as shares from 0 to 1, or both in percent."
                )


def _is_share(values: Values) -> bool:
    return bool(values.min() >= 0.0 and values.max() <= 1.0)


@dataclass(eq=False)
class _Scored:
    name: str
    seed: Any  # label of the run; its number once seeds are paired
    values: Values  # [R]
    rows: np.ndarray | None


class _Table:
    """The scores of one task and metric, with rows and seeds paired."""

    def __init__(
        self, runs: dict[str, list[Run]], metric: str, folds: bool, row_names: RowNames
    ) -> None:
        self.metric, self.folds, self.row_names = metric, folds, row_names
        self.notes: list[str] = []  # what was left out
        self.runs = [
            _Scored(name, run.seed, run.scores[metric], run.rows)
            for name in runs
            for run in runs[name]
        ]
        self.names = list(runs)
        self.has_rows = all(run.rows is not None for run in self.runs)
        for (name, seed), count in Counter((run.name, run.seed) for run in self.runs).items():
            if count > 1 and seed is not None:
                raise DataError(f"{name} has seed {seed} twice; keep one run of each seed.")
        if self.has_rows:
            self._pair_rows()
            return
        if any(run.rows is not None for run in self.runs):
            self.notes.append("Not all name their rows, so only the mean of each run counts.")
        for run in self.runs:
            run.values = run.values.mean(keepdims=True)

    def of(self, name: str) -> list[_Scored]:
        return [run for run in self.runs if run.name == name]

    def _pair_rows(self) -> None:
        for run in self.runs:
            self._sort_rows(run)
        if self.folds:
            self._refuse_other_rows()
            return
        every = [run.rows for run in self.runs]
        if all(np.array_equal(every[0], rows) for rows in every):
            return
        shared, everywhere = reduce(np.intersect1d, every), reduce(np.union1d, every)
        if not len(shared):
            raise DataError(
                f"{' and '.join(self.names)} share no row: {self._named(every[0])} is in one and "
                f"{self._named(every[-1])} in another; give scores of the same rows."
            )
        self.notes.append(
            f"{len(everywhere) - len(shared):,} of {len(everywhere):,} rows are not in all runs "
            "and were left out."
        )
        for run in self.runs:
            keep = np.isin(run.rows, shared, assume_unique=True)
            run.rows, run.values = shared, run.values[keep]

    def _sort_rows(self, run: _Scored) -> None:
        if (np.diff(run.rows) > 0).all():
            return
        order = np.argsort(run.rows, kind="stable")
        run.rows, run.values = run.rows[order], run.values[order]
        again = np.flatnonzero(np.diff(run.rows) == 0)
        if len(again):
            raise DataError(
                f"{run.name} has row {self._named(run.rows[again])} more than once in one run; "
                "keep one score of each row, or name the column of seeds with --columns seed=NAME."
            )

    def _named(self, rows: np.ndarray) -> str:
        return repr(self.row_names.name(int(rows[0])))

    def _refuse_other_rows(self) -> None:
        firsts: dict[Any, _Scored] = {}
        for run in self.runs:
            first = firsts.setdefault(run.seed, run)
            if run.seed is None or not np.array_equal(run.rows, first.rows):
                raise DataError(
                    f"fold {run.seed} of {run.name} has other rows than that of {first.name}; give "
                    "the same partition of the rows to all."
                )

    def empty(self) -> str | None:
        """Return why nothing can be compared; None where something can."""
        first = self.runs[0].values[0]
        if all((run.values == first).all() for run in self.runs):
            return f"every {self.metric} is {first:g}, in all runs and rows; nothing is compared."
        ours, *others = ([run.values for run in self.of(name)] for name in self.names)
        for name, theirs in zip(self.names[1:], others, strict=True):
            if len(ours) == len(theirs) and all(map(np.array_equal, ours, theirs)):
                return (
                    f"{self.names[0]} and {name} hold the same scores in every run and row; give "
                    "the results of two."
                )
        return None

    def equal(self) -> list[str]:
        """Return a sentence about each name whose scores are equal in all runs and rows."""
        firsts = {name: self.of(name)[0].values[0] for name in self.names if self.has_rows}
        return [
            f"Every {self.metric} of {name} is {first:g}, in all rows: was it scored?"
            for name, first in firsts.items()
            if all((run.values == first).all() for run in self.of(name))
        ]

    def pair_seeds(self, in_order: bool) -> bool:
        """Number the seeds, and return whether they are paired.

        Labels that all names share are paired where they are enough for a verdict, or are all there
        are; the others are left out. Runs without labels are paired in their order if that is said.
        """
        labels = [{run.seed for run in self.of(name)} for name in self.names]
        shared, everywhere = set.intersection(*labels), set.union(*labels)
        unknown = None in everywhere
        if unknown or not (len(shared) >= MIN_SEEDS or shared == everywhere):
            counts = {len(self.of(name)) for name in self.names}
            if in_order and not unknown:
                raise ConfigError(
                    f"--paired: the runs have labels, {', '.join(sorted(everywhere))}, and too few "
                    "are the same under every name; label equal seeds alike, or leave it out."
                )
            if in_order and len(counts) > 1:
                raise ConfigError("--paired: the names have different numbers of runs.")
            for name in self.names:
                for place, run in enumerate(self.of(name)):
                    run.seed = place
            return in_order or counts == {1}
        if lost := sorted(everywhere - shared):
            self.notes.append(f"Seeds that not all have were left out: {', '.join(lost)}.")
        numbers = _numbered(shared)
        self.runs = [run for run in self.runs if run.seed in shared]
        for run in self.runs:
            run.seed = numbers[run.seed]
        return True


def _numbered(labels: set[str]) -> dict[str, int]:
    if all(re.fullmatch(r"\d{1,9}", label) for label in labels):
        by_number = {label: int(label) for label in labels}
        if len(set(by_number.values())) == len(labels):
            return by_number
    return {label: number for number, label in enumerate(sorted(labels))}


PAIRINGS = {  # by whether rows are named, and whether seeds are paired
    (True, True): (SEEDS_AND_ROWS, "Paired by seed and by row."),
    (True, False): (
        ROWS_ALONE,
        "Paired by row; the seeds of two names are not the same, so not paired.",
    ),
    (False, True): (SEEDS_ALONE, "Paired by seed."),
    (False, False): (
        UNPAIRED,
        "Nothing is paired: neither rows nor seeds are the same under two names.",
    ),
}


def _results(
    table: _Table,
    task: str,
    better: str,
    question: Question,
    notes: list[str],
    sources: Sequence[Source],
) -> Results:
    seeds_paired = table.pair_seeds(question.paired)
    pairing, said = PAIRINGS[table.has_rows, seeds_paired]
    if len(table.runs) == len(table.names):
        _refuse_one_seed(table)
        said = "Paired by row; one run under each name."
    folds = len(table.of(table.names[0])) if table.folds else None
    if folds is not None and (folds < 2 or not seeds_paired):  # noqa: PLR2004
        raise DataError("folds cannot be paired; give the same folds, two at least, to all.")
    share = better == HIGHER and all(_is_share(run.values) for run in table.runs)
    margin, relative = _margin(table.metric, question, share=share)
    if question.chance is not None and not share:
        raise ConfigError(f"--chance is of shares from 0 to 1, and {table.metric} is not one.")
    cells, answers = [], {}
    for run in table.runs:
        cell = _cell(run.name, run.seed, table.metric, float(run.values.mean()), share)
        if relative and not run.values.mean() > 0.0:
            raise ConfigError(f"a margin in percent is for values above 0; {run.name} has others.")
        cells.append(cell)
        if table.has_rows:
            groups = table.row_names.groups(task, run.rows)
            row = run.rows if folds else None
            answers[cell.key] = from_scores(run.values, row=row, group=groups)
    described: dict[str, list[str]] = {}
    for source in sources:
        described.setdefault(f"{source.path}, {source.described()}", []).append(source.name)
    read = (f"{several(names)}: {text}." for text, names in described.items())
    return Results(
        task=task,
        recipe="",
        title=f"{' and '.join(table.names)}{f' on {task}' if task else ''}",
        margin=margin,
        baseline=table.names[0],
        cells=tuple(cells),
        command=question.command,
        chance=question.chance,
        metric=table.metric,
        better=None if share else better,
        relative=relative,
        folds=folds,
        external=External(
            sources={source.name: source.described() for source in sources},
            pairing=pairing,
            notes=(*table.equal(), *notes, *table.notes, said, *read),
            looks=question.looks,
            last_digit=_last_digit(table, relative),
        ),
        rows=answers,
    )


MOST_DIGITS = 9  # behind the point, of numbers that were rounded by a person or a program


def _last_digit(table: _Table, relative: bool) -> float:
    if table.has_rows:
        return 0.0
    values = np.concatenate([run.values for run in table.runs])
    digits = (10.0**-d for d in range(MOST_DIGITS))
    unit = next((u for u in digits if np.allclose(np.round(values / u), values / u, 0, 1e-6)), 0.0)
    return unit / float(values.min()) if relative else unit


def _refuse_one_seed(table: _Table) -> None:
    rows = len(table.runs[0].values)
    if not table.has_rows:
        raise DataError(
            "one number under each name says nothing about reruns or rows; give at least "
            f"{MIN_SEEDS} seeds each, or the score of each row."
        )
    if rows < MIN_ROWS:
        raise DataError(
            f"one seed on {rows} rows gives no interval; give at least {MIN_SEEDS} seeds or "
            f"{MIN_ROWS} rows."
        )


def _margin(metric: str, question: Question, *, share: bool) -> tuple[float, bool]:
    margin = question.margins.get(metric, question.margins.get(""))
    if margin is None and share:
        return MARGIN, False
    if margin is None:
        raise ConfigError(
            f"{metric} is not a share from 0 to 1; set --margin in its unit (0.01) or relative to "
            "its value (1%), or --percent if it is one."
        )
    size, relative = margin.for_metric(metric, "share" if share else "value")
    return size, relative or (question.relative and not share)


def _cell(name: str, seed: int, metric: str, value: float, share: bool) -> Cell:
    return Cell(
        mechanism=name,
        num_heads=0,
        seed=seed,
        parameters_layer=0,
        parameters_model=0,
        flops=0,
        test_loss=None,
        test_accuracy=value if share else None,
        scores={} if share else {metric: value},
    )


def mean_over_tasks(several: Sequence[Results]) -> Results | None:
    """Return the mean of a metric over tasks, each counted alike, as one comparison.

    Each task weighs the same, however many rows it has: the share of row r in the mean over K
    tasks of N rows together is `mean + (score - mean of its task) N / (K R)`, R being the rows of
    its task. The tasks are taken as they are, so its interval says nothing of other tasks.

    Returns:
        None where tasks differ in their runs, in what a margin is, or in whether rows are known.
    """
    first = several[0]
    names = {(r.better, r.relative, r.margin, bool(r.rows), r.folds) for r in several}
    keys = [cell.key for cell in first.cells]
    if len(names) > 1 or any([cell.key for cell in r.cells] != keys for r in several):
        return None
    cells, rows, share = [], {}, first.better is None
    for place, key in enumerate(keys):
        of_tasks = [results.cells[place] for results in several]
        values = [c.test_accuracy if share else c.scores[first.metric] for c in of_tasks]
        mean = float(np.mean(values))
        cells.append(_cell(key[0], key[2], first.metric, mean, share))
        if first.rows:
            rows[key] = _weighted([r.rows[key] for r in several], mean)
    return replace(
        first,
        task=f"mean over {len(several)} tasks",
        title=f"{first.title.partition(' on ')[0]}, mean over {len(several)} tasks",
        cells=tuple(cells),
        rows=rows,
        external=replace(
            first.external,
            last_digit=float(np.mean([r.external.last_digit for r in several])),
            rows_of_tasks=tuple(len(r.rows[keys[0]]) for r in several)
            if rows and first.folds is None
            else (),
        ),
    )


def _weighted(answers: Sequence[Answers], mean: float) -> Answers:
    total = sum(map(len, answers))
    parts = [
        mean + (one.right - one.right.mean()) * total / (len(answers) * len(one)) for one in answers
    ]
    groups = [one.group for one in answers if one.group is not None]
    ends = np.cumsum([0, *(int(of.max()) + 1 for of in groups)])  # no group is in two tasks
    renamed = [of + first for of, first in zip(groups, ends[:-1], strict=True)]
    return from_scores(np.concatenate(parts), group=np.concatenate(renamed) if renamed else None)
