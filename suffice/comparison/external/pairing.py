"""Runs of other programs as comparisons: rows and seeds paired, and what was left out counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from suffice.comparison.answers import Answers, from_scores
from suffice.comparison.external.readers import RowNames, Run, Source, Values
from suffice.comparison.metrics import HIGHER, LOWER, MARGIN, Margin
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


@dataclass(frozen=True, kw_only=True)
class Question:
    # metrics to judge by; empty takes the first that all sources have
    metrics: tuple[str, ...] = ()
    # "higher" or "lower", of every metric; None where names or sources tell
    better: str | None = None
    percent: bool = False  # whether scores are in percent, which are shares once divided by 100
    margins: dict[str, Margin]  # margin by metric, or under "" for all
    # whether margins of metrics that are not shares are fractions of their values
    relative: bool = False
    baseline: str | None = None  # name that the others are compared with; None takes the first
    failures: float | None = None  # largest acceptable rate of failed trainings; None does not ask
    chance: float | None = None  # the share that a guess gets; None where it is not known
    paired: bool = False  # whether runs without labels of seeds are paired in their order
    # numbers of seeds at which the verdict is looked at, declared before
    looks: tuple[int, ...] = ()
    null: bool = False  # whether both names are reruns of one thing
    command: str = ""  # the command as typed


def comparisons(
    sources: Sequence[Source], question: Question, row_names: RowNames
) -> list[Results]:
    """Return a comparison for each task and metric, tasks in the order of the baseline's."""
    twice = [name for name, count in Counter(s.name for s in sources).items() if count > 1]
    if twice:
        raise ConfigError(f"two inputs are called {twice[0]!r}; rename one, as NAME=PATH.")
    names = [source.name for source in sources]
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


def _notes_on_sources(sources: Sequence[Source]) -> list[str]:
    names: dict[str, list[str]] = {}
    for source in sources:
        names.setdefault(f"{source.path}, {source.described()}", []).append(source.name)
    return [f"{several(of)}: {text}." for text, of in names.items()]


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
    if all(_is_share(value) for value in values):
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


class _Table:
    """The scores of one task and metric, with rows and seeds paired."""

    def __init__(
        self, runs: dict[str, list[Run]], metric: str, folds: bool, row_names: RowNames
    ) -> None:
        self.metric, self.folds, self.row_names = metric, folds, row_names
        self.notes: list[str] = []  # what was left out
        # labels of the runs by name; their numbers once they are paired
        self.seeds: dict[str, list[Any]] = {n: [run.seed for run in runs[n]] for n in runs}
        self.scores = {n: [run.scores[metric] for run in runs[n]] for n in runs}
        self.rows: dict[str, list[Any]] = {n: [run.rows for run in runs[n]] for n in runs}
        self.has_rows = all(rows is not None for of_name in self.rows.values() for rows in of_name)
        for name, labels in self.seeds.items():
            twice = [label for label, n in Counter(labels).items() if n > 1 and label is not None]
            if twice:
                raise DataError(f"{name} has seed {twice[0]} twice; keep one run of each seed.")
        self._pair_rows()

    def each(self) -> Iterator[tuple[str, int]]:
        for name, of_name in self.scores.items():
            yield from ((name, place) for place in range(len(of_name)))

    def _pair_rows(self) -> None:
        if not self.has_rows:
            if any(rows is not None for of_name in self.rows.values() for rows in of_name):
                self.notes.append("Not all name their rows, so only the mean of each run counts.")
            for name, place in self.each():
                self.scores[name][place] = self.scores[name][place].mean(keepdims=True)
            return
        for name, place in self.each():
            self._sort_rows(name, place)
        if self.folds:
            self._refuse_other_rows()
            return
        rows = [self.rows[name][place] for name, place in self.each()]
        if all(np.array_equal(rows[0], of_run) for of_run in rows):
            return
        shared, everywhere = rows[0], rows[0]
        for of_run in rows[1:]:
            shared, everywhere = np.intersect1d(shared, of_run), np.union1d(everywhere, of_run)
        if not len(shared):
            raise DataError(
                f"{' and '.join(self.scores)} share no row: {self._named(rows[0])} is in one and "
                f"{self._named(rows[-1])} in another; give scores of the same rows."
            )
        self.notes.append(
            f"{len(everywhere) - len(shared):,} of {len(everywhere):,} rows are not in all runs "
            "and were left out."
        )
        for name, place in self.each():
            keep = np.isin(self.rows[name][place], shared, assume_unique=True)
            self.scores[name][place] = self.scores[name][place][keep]
            self.rows[name][place] = shared

    def _sort_rows(self, name: str, place: int) -> None:
        rows = self.rows[name][place]
        if (np.diff(rows) > 0).all():
            return
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
        again = np.flatnonzero(np.diff(rows) == 0)
        if len(again):
            raise DataError(
                f"{name} has row {self._named(rows[again])} more than once in one run; keep one "
                "score of each row, or name the column of seeds with --columns seed=NAME."
            )
        self.rows[name][place], self.scores[name][place] = rows, self.scores[name][place][order]

    def _named(self, rows: np.ndarray) -> str:
        return repr(self.row_names.name(int(rows[0])))

    def _refuse_other_rows(self) -> None:
        of_fold: dict[Any, tuple[str, np.ndarray]] = {}
        for name, place in self.each():
            label, rows = self.seeds[name][place], self.rows[name][place]
            first, of_first = of_fold.setdefault(label, (name, rows))
            if label is None or not np.array_equal(rows, of_first):
                raise DataError(
                    f"fold {label} of {name} has other rows than that of {first}; give the same "
                    "partition of the rows to all."
                )

    def empty(self) -> str | None:
        """Return why nothing can be compared; None where something can."""
        values = [self.scores[name][place] for name, place in self.each()]
        first = values[0][0]
        if all((of_run == first).all() for of_run in values):
            return f"every {self.metric} is {first:g}, in all runs and rows; nothing is compared."
        (first_name, ours), *others = self.scores.items()
        for name, theirs in others:
            pairs = zip(ours, theirs, strict=False)
            if len(ours) == len(theirs) and all(np.array_equal(a, b) for a, b in pairs):
                return (
                    f"{first_name} and {name} hold the same scores in every run and row; give the "
                    "results of two."
                )
        return None

    def equal(self) -> list[str]:
        """Return a sentence about each name whose scores are equal in all runs and rows."""
        firsts = {name: of_name[0][0] for name, of_name in self.scores.items() if self.has_rows}
        return [
            f"Every {self.metric} of {name} is {first:g}, in all rows: was it scored?"
            for name, first in firsts.items()
            if all((of_run == first).all() for of_run in self.scores[name])
        ]

    def pair_seeds(self, in_order: bool) -> bool:
        """Number the seeds, and return whether they are paired.

        Labels that all names share are paired where they are enough for a verdict, or are all there
        are; the others are left out. Runs without labels are paired in their order if that is said.
        """
        labels = [set(of_name) for of_name in self.seeds.values()]
        counts = {len(of_name) for of_name in self.scores.values()}
        if any(None in of_name for of_name in labels):
            if in_order and len(counts) > 1:
                raise ConfigError("--paired: the names have different numbers of runs.")
            self.seeds = {name: list(range(len(s))) for name, s in self.scores.items()}
            return in_order or counts == {1}
        shared = set.intersection(*labels)
        everywhere = set.union(*labels)
        if not (len(shared) >= MIN_SEEDS or shared == everywhere):
            self.seeds = {name: list(range(len(s))) for name, s in self.scores.items()}
            return counts == {1}
        if lost := sorted(everywhere - shared):
            self.notes.append(f"Seeds that not all have were left out: {', '.join(lost)}.")
        numbers = _numbered(shared)
        for name, of_name in self.seeds.items():
            keep = [place for place, label in enumerate(of_name) if label in shared]
            self.scores[name] = [self.scores[name][place] for place in keep]
            self.rows[name] = [self.rows[name][place] for place in keep]
            self.seeds[name] = [numbers[of_name[place]] for place in keep]
        return True


def _numbered(labels: set[str]) -> dict[str, int]:
    if all(re.fullmatch(r"\d{1,9}", label) for label in labels):
        by_number = {label: int(label) for label in labels}
        if len(set(by_number.values())) == len(labels):
            return by_number
    return {label: number for number, label in enumerate(sorted(labels))}


PAIRED = {
    SEEDS_AND_ROWS: "Paired by seed and by row.",
    ROWS_ALONE: "Paired by row; the seeds of two names are not the same, so not paired.",
    SEEDS_ALONE: "Paired by seed.",
    UNPAIRED: "Nothing is paired: neither rows nor seeds are the same under two names.",
}
ONE_PAIR = "Paired by row; one run under each name."


def _results(
    table: _Table,
    task: str,
    better: str,
    question: Question,
    notes: list[str],
    sources: Sequence[Source],
) -> Results:
    seeds_paired = table.pair_seeds(question.paired)
    first = next(iter(table.scores))
    has_rows = table.has_rows
    pairing = {
        (True, True): SEEDS_AND_ROWS,
        (True, False): ROWS_ALONE,
        (False, True): SEEDS_ALONE,
        (False, False): UNPAIRED,
    }[has_rows, seeds_paired]
    single = all(len(of_name) == 1 for of_name in table.scores.values())
    if single:
        _refuse_one_seed(table, has_rows)
    folds = len(table.seeds[first]) if table.folds else None
    if folds is not None and (folds < 2 or not seeds_paired):  # noqa: PLR2004
        raise DataError("folds cannot be paired; give the same folds, two at least, to all.")
    share = better == HIGHER and all(_is_share(table.scores[n][place]) for n, place in table.each())
    margin, relative = _margin(table.metric, question, share=share)
    if question.chance is not None and not share:
        raise ConfigError(f"--chance is of shares from 0 to 1, and {table.metric} is not one.")
    cells, answers = [], {}
    for name, place in table.each():
        values = table.scores[name][place]
        cell = _cell(name, table.seeds[name][place], table.metric, float(values.mean()), share)
        if relative and not values.mean() > 0.0:
            raise ConfigError(f"a margin in percent is for values above 0; {name} has others.")
        cells.append(cell)
        if has_rows:
            rows = table.rows[name][place]
            groups = table.row_names.groups(task, rows)
            answers[cell.key] = from_scores(values, row=rows if folds else None, group=groups)
    said = ONE_PAIR if single else PAIRED[pairing]
    return Results(
        task=task,
        recipe="",
        title=f"{' and '.join(s.name for s in sources)}{f' on {task}' if task else ''}",
        margin=margin,
        baseline=first,
        cells=tuple(cells),
        speeds=(),
        machine={},
        versions={},
        commit=None,
        command=question.command,
        started="",
        seconds=0.0,
        chance=question.chance,
        metric=table.metric,
        better=None if share else better,
        relative=relative,
        folds=folds,
        external=External(
            sources={source.name: source.described() for source in sources},
            pairing=pairing,
            notes=(*table.equal(), *notes, *table.notes, said, *_notes_on_sources(sources)),
            looks=question.looks,
            last_digit=_last_digit(table, relative),
        ),
        rows=answers,
    )


def _last_digit(table: _Table, relative: bool) -> float:
    values = np.concatenate([table.scores[name][place] for name, place in table.each()])
    if table.has_rows:
        return 0.0
    digits = (10.0**-d for d in range(MOST_DIGITS))
    unit = next((u for u in digits if np.allclose(np.round(values / u), values / u, 0, 1e-6)), 0.0)
    return unit / float(values.min()) if relative else unit


MOST_DIGITS = 9  # behind the point, of numbers that were rounded by a person or a program


def _refuse_one_seed(table: _Table, has_rows: bool) -> None:
    rows = len(next(iter(table.scores.values()))[0])
    if not has_rows:
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
        epochs=(),
        best_epoch=0,
        stopped_early=False,
        seconds_per_epoch=0.0,
        train_loss=None,
        train_accuracy=None,
        train_top5=None,
        test_loss=None,
        test_accuracy=value if share else None,
        test_top5=None,
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
    cells, rows = [], {}
    for place, key in enumerate(keys):
        of_tasks = [results.cells[place] for results in several]
        shares = [cell.test_accuracy for cell in of_tasks]
        values: list[Any] = (
            shares if None not in shares else [c.scores[first.metric] for c in of_tasks]
        )
        mean = float(np.mean(values))
        cells.append(_cell(key[0], key[2], first.metric, mean, None not in shares))
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
