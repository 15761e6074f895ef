"""Readers of other programs' results, chosen by the content of a file or folder."""

from __future__ import annotations

import fnmatch
import math
import os
import re
import zipfile
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffice.comparison.metrics import HIGHER, LOWER, Margin
from suffice.data.files import lines
from suffice.data.rows import decode_lines, kind_of_file, plain_text, read_rows, refuse_columns
from suffice.errors import ConfigError, DataError, check_known
from suffice.utils.files import parse_json, read_json
from suffice.utils.grammar import split_list

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of results, see `suffice.verdict`."""

    metrics: tuple[str, ...] = ()
    better: str | None = None
    percent: bool = False
    margins: Mapping[str, Margin]  # by metric, or under "" for all
    relative: bool = False
    baseline: str | None = None
    failures: float | None = None
    chance: float | None = None
    paired: bool = False
    kind: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)  # by role
    looks: tuple[int, ...] = ()
    state: str | Path | None = None
    null: bool = False
    command: str = ""  # as typed


class RowNames:
    """Numbers the names of rows, the same name alike in every file."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._groups: dict[tuple[str, int], str] = {}  # by task and number of a row

    def number(self, name: object) -> int:
        return self._numbers.setdefault(str(name), len(self._numbers))

    def name(self, number: int) -> str:
        return list(self._numbers)[number]

    def put_into_group(self, task: str, row: int, group: object) -> None:
        """Keep the group of a row, the same in every run."""
        before = self._groups.setdefault((task, row), str(group))
        if before != str(group):
            raise DataError(
                f"row {self.name(row)!r} is in group {before!r} and in group {str(group)!r}; a row "
                "has one group in all runs."
            )

    def groups(self, task: str, rows: Values) -> NDArray[np.int64] | None:
        """Return numbers of the groups of rows; None where rows are the samples."""
        if not self._groups:
            return None
        names = [self._groups.get((task, int(row))) for row in rows]
        if None in names:
            raise DataError("not all results name the groups of their rows; name them in all.")
        return np.unique(names, return_inverse=True)[1]


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """The scores of one trained model on one task."""

    scores: dict[str, Values]  # scores [R] by metric, as the source wrote them
    task: str = ""  # name of the task; "" where the source has one
    seed: str | None = None  # label of the training; None where it is not known
    # numbers of the rows, [R]; None where each metric has one value, R = 1
    rows: NDArray[np.int64] | None = None


@dataclass(kw_only=True)
class Source:
    """All runs under one name."""

    name: str  # name of the mechanism, model or setting
    path: str  # path that was read
    kind: str  # kind of the files
    runs: list[Run] = field(default_factory=list)  # run of each task and trained model
    # "higher" or "lower" by metric, as far as the source tells
    better: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # sentences about choices in reading
    folds: bool = False  # whether labels of seeds are those of the folds of a cross-validation

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(run.task for run in self.runs))

    def described(self) -> str:
        seeds = len(self.runs) // len(self.tasks)
        text = f"read as {self.kind}: {seeds} {'fold' if self.folds else 'run'}{'s' * (seeds != 1)}"
        if self.runs[0].rows is not None:
            text += f" of {len(self.runs[0].rows):,} rows"
        return text + (f", {len(self.tasks)} tasks" if len(self.tasks) > 1 else "")


TRUE, FALSE = ("true", "yes", "correct", "right"), ("false", "no", "incorrect", "wrong")


def number_of(value: object, where: str) -> float:
    word = value.strip().lower() if isinstance(value, str) else value
    if word in TRUE or word in FALSE:
        return float(word in TRUE)
    try:
        number = float(word)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(
            f"{where} has the score {word!r:.40}, which is not a finite number; leave out the "
            "whole run, or score it."
        )
    return number


SEED = re.compile(r"(?:seed|run|rep|trial)[-_=. ]?(\d+)", re.IGNORECASE)


def seed_in(path: Path) -> str | None:
    """Return the seed that the name of a file or of its folder tells.

    Example:
        >>> seed_in(Path("runs/a-seed3/trainer_state.json")), seed_in(Path("runs/a/state.json"))
        ('3', None)
    """
    matches = map(SEED.search, (path.stem, path.parent.name))
    return next((match[1] for match in matches if match), None)


# kinds

TABLE, COLUMN = "table", "column of scores"
COMPARISON, TRAINER, LM_EVAL, INSPECT = "comparison", "trainer", "lm-eval", "inspect"
KINDS = {
    TABLE: "a table with a column of scores",
    COLUMN: "one number a line",
    COMPARISON: "a comparison of `suffice compare`",
    TRAINER: "trainer_state.json of transformers",
    LM_EVAL: "results of lm-evaluation-harness with --log_samples",
    INSPECT: "logs of inspect",
}
RESULTS, STATE = "results.json", "trainer_state.json"


def kind_of(path: Path) -> str:
    """Return the kind of a file or folder, by its content."""
    if not path.exists():
        raise DataError(f"no such file or folder: {path}")
    kinds = (_kinds_in(path) if path.is_dir() else {_kind_of_file(path)}) - {None}
    if len(kinds) > 1:
        raise DataError(
            f"{path} holds several kinds of results ({', '.join(sorted(map(str, kinds)))}); name "
            "one with --kind."
        )
    if not kinds:
        known = "; ".join(f"{kind}: {what}" for kind, what in KINDS.items())
        raise DataError(f"{path} holds no results that can be read. {known}.")
    return str(kinds.pop())


MAX_FILES = 20_000  # below a folder of results


def _files_below(folder: Path, pattern: str) -> list[Path]:
    files: list[Path] = []
    count = 0
    for place, _, names in os.walk(folder):
        count += 1 + len(names)
        if count > MAX_FILES:
            raise DataError(f"{folder} holds more than {MAX_FILES:,} files; name one of results.")
        files += [Path(place, name) for name in fnmatch.filter(names, pattern)]
    return sorted(files)


def _kinds_in(folder: Path) -> set[str | None]:
    if (folder / RESULTS).is_file() and _kind_of_file(folder / RESULTS) == COMPARISON:
        return {COMPARISON}
    logs = [path for path in _files_below(folder, "*.json") if path.name != STATE]
    files = [*_files_below(folder, "*.eval")[:1], *logs[:20]]
    kinds = {kind for path in files if (kind := _kind_of_file(path)) in (INSPECT, LM_EVAL)}
    kinds |= {TRAINER} if _files_below(folder, STATE) else set()
    return kinds | ({LM_EVAL} if _files_below(folder, "samples_*.jsonl") else set())


def _kind_of_file(path: Path) -> str | None:
    if path.suffix == ".eval" and zipfile.is_zipfile(path):
        return INSPECT
    if path.suffix == ".json":
        content = read_json(path)
        return _kind_of_object(content) if isinstance(content, dict) else None
    of_table = kind_of_file(path)
    if of_table == "parquet":
        return TABLE
    first = next(decode_lines(lines(path, keep_ends=True), str(path)), "")
    try:
        float(first)
    except ValueError:
        pass
    else:
        return COLUMN
    if path.suffix == ".jsonl" and {"doc_id", "filter", "resps"} <= {*read_rows(str(path))[0]}:
        return LM_EVAL
    return TABLE if of_table else None


def _kind_of_object(content: Mapping[str, Any]) -> str | None:
    if "log_history" in content:
        return TRAINER
    if {"cells", "baseline", "margin"} <= content.keys():
        return COMPARISON
    if isinstance(content.get("eval"), dict) and "status" in content:
        return INSPECT
    return LM_EVAL if {"results", "configs"} <= content.keys() else None


def read(
    name: str, value: Any, kind: str | None, question: Question, row_names: RowNames
) -> list[Source]:
    """Return what a value holds: a source for each model that a table names, else one.

    The value is the path of a file or folder of a kind, see `KINDS`; without a kind it is an array
    [seeds, rows], a list [seeds] or a DataFrame.
    """
    if kind is None and hasattr(value, "to_dict") and hasattr(value, "columns"):
        names = [str(column) for column in value.columns]
        rows = enumerate(value.to_dict("records"), 1)
        return _read_table(name, name, names, rows, question, row_names)
    if kind == TABLE:
        return _read_table(str(value), name, *read_rows(str(value)), question, row_names)
    if question.columns and kind is None:
        named = ", ".join(question.columns)
        raise ConfigError(f"{named}: columns are of tables, and {name} is an array.")
    if question.columns:
        raise ConfigError(f"--columns is for tables, and {value} is {kind}.")
    if kind is None:
        return [_read_array(name, value, question.metrics)]
    source = Source(name=name, path=str(value), kind=kind)
    READERS[kind](Path(value), source, row_names)
    if not source.runs:
        raise DataError(f"{value} holds no scores.")
    return [source]


def _read_array(name: str, value: Any, metrics: tuple[str, ...]) -> Source:
    try:
        scores = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} is not an array of numbers ({error!s:.200}).") from error
    if scores.ndim not in (1, 2) or not scores.size:
        raise DataError(f"{name} has shape {scores.shape}; give [seeds] or [seeds, rows].")
    if not np.isfinite(scores).all():
        raise DataError(f"{name} has scores that are not finite; leave out those runs.")
    rows = np.arange(scores.shape[1]) if scores.ndim == 2 else None  # noqa: PLR2004
    runs = [
        Run(
            scores={next(iter(metrics), "score"): np.atleast_1d(of_seed)},
            seed=None if rows is None else str(seed),
            rows=rows,
        )
        for seed, of_seed in enumerate(scores)
    ]
    return Source(name=name, path="an array", kind="array", runs=runs)


def _read_column(path: Path, source: Source, _: RowNames) -> None:
    """Read the numbers of a file, each the score of one run whose seed is not known."""
    source.runs = [
        Run(scores={"score": np.array([number_of(line, f"{path}, line {number},")])})
        for number, line in enumerate(decode_lines(lines(path, keep_ends=True), str(path)), 1)
        if line.strip()
    ]


# transformers' Trainer

SPEEDS = ("_runtime", "_per_second", "_time")


def _read_trainer(path: Path, source: Source, _: RowNames) -> None:
    latest: dict[Path, tuple[int, Path]] = {}
    for state in _files_below(path, STATE) if path.is_dir() else [path]:
        step = re.fullmatch(r"checkpoint-(\d+)", state.parent.name)
        training = state.parent.parent if step else state.parent
        candidate = (int(step[1]) if step else 1 << 62, state)
        latest[training] = max(latest.get(training, candidate), candidate)
    source.runs = [
        Run(scores=_last_evaluation(state), seed=seed_in(training / STATE))
        for training, (_, state) in sorted(latest.items())
    ]
    source.notes = ["Of each training the last evaluation counts."]


def _last_evaluation(path: Path) -> dict[str, Values]:
    history = read_json(path).get("log_history", [])
    for entry in reversed(history):
        scores = {
            key.removeprefix("eval_"): np.array([number_of(value, f"{path}, {key},")])
            for key, value in entry.items()
            if key.startswith("eval_") and not key.endswith(SPEEDS) and _is_number(value)
        }
        if scores:
            return dict(sorted(scores.items(), key=lambda item: item[0] == "loss"))
    raise DataError(f"{path} has no evaluation (eval_...); train with eval_strategy set.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _complete(
    by_metric: Mapping[str, Mapping[int, list[float]]], rows: Iterable[int]
) -> dict[str, Values]:
    """Return the mean of each row in the metrics that every row has."""
    return {
        metric: np.array([np.mean(of_metric[row]) for row in rows])
        for metric, of_metric in by_metric.items()
        if of_metric.keys() == set(rows)
    }


# lm-evaluation-harness

STAMP = re.compile(r"(?:samples_)?(?P<task>.+?)(?:_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+))?")
CONTRADICTION = 1e-3  # difference of a mean from that of its samples; the harness rounds less


def _read_lm_eval(path: Path, source: Source, row_names: RowNames) -> None:
    files = _files_below(path, "samples_*.jsonl") if path.is_dir() else [path]
    if not files or path.suffix == ".json":
        raise DataError(
            f"{path} has no samples, without which nothing is known of rows; run the harness "
            "again with --log_samples."
        )
    skipped: set[str] = set()
    for file in files:
        task, date = STAMP.fullmatch(file.stem).group("task", "date")
        scores, rows = _read_samples(file, row_names, skipped)
        source.runs.append(Run(scores=scores, task=task, seed=seed_in(file), rows=rows))
        results = file.with_name(f"results_{date}.json")
        if date is not None and results.exists():
            content = read_json(results)
            rising = content.get("higher_is_better", {}).get(task, {})
            source.better |= {
                metric: HIGHER if rising[name] else LOWER
                for metric in scores
                if rising.get(name := metric.partition(",")[0]) is not None
            }
            source.notes += _contradictions(content["results"].get(task, {}), task, scores, results)
    if skipped:
        source.notes.append(f"Metrics without a number for each row: {', '.join(sorted(skipped))}.")


def _read_samples(
    file: Path, row_names: RowNames, skipped: set[str]
) -> tuple[dict[str, Values], NDArray[np.int64]]:
    rows: dict[int, None] = {}
    scores: dict[str, dict[int, list[float]]] = {}
    for number, sample in read_rows(str(file))[1]:
        row = row_names.number(f"{sample.get('doc_id')} {sample.get('doc_hash', '')}".strip())
        rows[row] = None
        of_filter = sample.get("filter", "none")
        for metric in sample.get("metrics", ()):
            value = sample.get(metric)
            if not _is_number(value):
                skipped.add(metric)
                continue
            full = metric if of_filter == "none" else f"{metric},{of_filter}"
            if row in scores.setdefault(full, {}):
                raise DataError(f"{file} has row {row_names.name(row)!r} twice; keep one of them.")
            scores[full][row] = [number_of(value, f"{file}, line {number}, {metric}")]
    complete = _complete(scores, rows)
    if not complete:
        lists = "" if skipped or scores else ", as no sample lists its metrics"
        raise DataError(
            f"{file} has no metric with a number for every row{lists}; run a recent "
            "lm-evaluation-harness with --log_samples."
        )
    return complete, np.array(list(rows))


def _contradictions(
    written: Mapping[str, Any], task: str, scores: Mapping[str, Values], file: Path
) -> list[str]:
    """Return a sentence for each mean of samples that the results of their run contradict.

    Shares alone: the harness computes other metrics, such as a perplexity, not as a mean of rows.
    """
    notes = []
    for metric, of_rows in scores.items():
        mean = written.get(metric if "," in metric else f"{metric},none")
        share = _is_number(mean) and 0.0 <= of_rows.min() <= of_rows.max() <= 1.0
        if share and abs(of_rows.mean() - mean) > CONTRADICTION:
            notes.append(
                f"{file} has {metric} {mean:.4g} for {task}, and the mean of its samples, which "
                f"is judged, is {of_rows.mean():.4g}: one of the two is wrong."
            )
    return notes


# inspect

LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}


def _read_inspect(path: Path, source: Source, row_names: RowNames) -> None:
    files = [path]
    if path.is_dir():
        every = [*_files_below(path, "*.eval"), *_files_below(path, "*.json")]
        files = [file for file in every if _kind_of_file(file) == INSPECT]
    for file in files:
        header, samples = _log(file)
        if header.get("status") != "success":
            raise DataError(
                f"{file} ended with status {header.get('status')!r}; leave it out, or run it again."
            )
        by_scorer: dict[str, dict[int, list[float]]] = {}
        for sample in samples:
            row = row_names.number(sample.get("id"))
            for scorer, score in (sample.get("scores") or {}).items():
                value = score.get("value")
                where = f"{file}, sample {sample.get('id')}, {scorer}"
                number = LETTERS[value] if value in LETTERS else number_of(value, where)
                by_scorer.setdefault(scorer, {}).setdefault(row, []).append(number)
        if not by_scorer:
            raise DataError(f"{file} has no scored samples; run inspect with log_samples on.")
        first = next(iter(by_scorer.values()))
        if any(len(values) > 1 for values in first.values()):
            source.notes = ["Epochs of a sample are averaged."]
        task = str(header["eval"].get("task", ""))
        scores, rows = _complete(by_scorer, first), np.array(list(first))
        source.runs.append(Run(scores=scores, task=task, seed=seed_in(file), rows=rows))


def _log(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if not zipfile.is_zipfile(file):
        content = read_json(file)
        return content, content.get("samples") or []
    try:
        with zipfile.ZipFile(file) as archive:
            members = sorted(n for n in archive.namelist() if n.startswith("samples/"))
            header = parse_json(archive.read("header.json"))
            return header, [parse_json(archive.read(member)) for member in members]
    except (zipfile.BadZipFile, KeyError, ValueError, NotImplementedError) as error:
        raise DataError(
            f"{file} cannot be read ({error!s:.200}); Python 3.14 reads its compression, before "
            "that convert it: inspect log convert --to json --output-dir FOLDER FILE."
        ) from error


READERS = {
    COLUMN: _read_column,
    TRAINER: _read_trainer,
    LM_EVAL: _read_lm_eval,
    INSPECT: _read_inspect,
}


# tables

ROLES = {
    "model": ("model", "mechanism", "method", "system", "name", "variant"),
    "task": ("task", "dataset", "benchmark"),
    "seed": ("seed", "run", "replicate", "repeat", "trial"),
    "fold": ("fold",),
    "row": ("row", "id", "doc_id", "sample_id", "example", "example_id", "idx", "index"),
    "group": (),
    "score": ("score", "accuracy", "acc", "correct", "value", "loss", "test_score", "metric"),
    "answer": ("answer", "prediction", "predicted", "response"),
    "label": ("label", "target", "gold", "truth", "expected"),
}
"""Names of columns by what they hold, the likeliest first; groups of rows are always named."""


def parse_columns(
    columns: str | Mapping[str, str] | None, groups: str | None = None
) -> dict[str, str]:
    """Return the column of each role that a text names, and that of groups.

    Example:
        >>> parse_columns("seed=run,score=acc", groups="user")
        {'group': 'user', 'seed': 'run', 'score': 'acc'}
    """
    named = {} if groups is None else {"group": groups}
    if isinstance(columns, Mapping):
        return {**columns, **named}
    for word in split_list(columns or ""):
        role, equals, column = word.partition("=")
        if not (equals and column):
            raise ConfigError(f"--columns {word}: write ROLE=NAME, such as seed=run,score=acc.")
        check_known("role of a column", role, ROLES)
        named[role] = column
    return named


def _roles(
    path: str, names: list[str], columns: Mapping[str, str], metrics: tuple[str, ...]
) -> tuple[dict[str, str], list[str]]:
    """Return the column of each role, and the columns of scores, none where answers are scored."""
    lacking = [column for column in (*columns.values(), *metrics) if column not in names]
    if lacking:
        refuse_columns(path, names, lacking, hint="name others with --columns or --metric.")
    by_name = {name.lower(): name for name in names}
    roles = dict(columns)
    for role, usual in ROLES.items():
        there = [by_name[name] for name in usual if name in by_name]
        free = [name for name in there if name not in roles.values()]
        if role not in roles and free:
            roles[role] = free[0]
    if {"seed", "fold"} <= roles.keys():
        del roles["fold" if _counts_seeds(path, roles, columns) else "seed"]
    if "group" in roles and "row" not in roles:
        raise DataError(f"{path} has groups and no column that names rows; use --columns row=NAME.")
    score = roles.pop("score", None)
    if metrics or score:
        return roles, [*metrics] or [score]
    if "answer" not in roles:
        rest = [name for name in names if name not in roles.values()]
        if len(rest) != 1:
            refuse_columns(path, names, ["score"], hint="name it with --columns score=NAME.")
        return roles, rest
    if "label" not in roles:
        raise DataError(
            f"{path} has answers ({roles['answer']}) and no column of labels to score them by; "
            "name it with --columns label=NAME, or a column of scores."
        )
    return roles, []


def _counts_seeds(path: str, roles: Mapping[str, str], columns: Mapping[str, str]) -> bool:
    """Return whether seeds, not folds, are the runs of a table that has both."""
    if ("seed" in columns) == ("fold" in columns):
        raise DataError(
            f"{path} has seeds ({roles['seed']}) and folds ({roles['fold']}); give one partition "
            f"alone, or name rows and --columns seed={roles['seed']}, which makes one run of all "
            "folds of a seed."
        )
    return "seed" in columns


@dataclass
class _Rows:
    """Rows of one run as they are read."""

    numbers: array[int] = field(default_factory=lambda: array("q"))
    scores: dict[str, array[float]] = field(default_factory=dict)


def _read_table(
    path: str,
    name: str,
    names: list[str],
    numbered_rows: Iterable[tuple[int, Mapping[str, Any]]],
    question: Question,
    row_names: RowNames,
) -> list[Source]:
    roles, metrics = _roles(path, names, question.columns, question.metrics)
    seeds = roles.get("fold", roles.get("seed"))
    named = [column for role, column in roles.items() if role not in ("answer", "label")]
    by_line = "row" not in roles and seeds is None
    runs: dict[tuple[str, str, str | None], _Rows] = {}
    for number, row in numbered_rows:
        where = f"{path}, row {number},"
        if lost := [column for column in named if column not in row]:
            raise DataError(f"{where} has no {lost[0]!r}; give every row all columns.")
        model = str(row[roles["model"]]) if "model" in roles else name
        task = str(row[roles["task"]]) if "task" in roles else ""
        seed = None if seeds is None else str(row[seeds])
        run = runs.setdefault((model, task, f"line {number}" if by_line else seed), _Rows())
        if "row" in roles:
            run.numbers.append(row_names.number(row[roles["row"]]))
        if "group" in roles:
            row_names.put_into_group(task, run.numbers[-1], row[roles["group"]])
        scores = {metric: number_of(row.get(metric), where) for metric in metrics}
        for metric, value in (scores or _right(row, roles, where)).items():
            run.scores.setdefault(metric, array("d")).append(value)
    if not runs:
        raise DataError(f"{path} has no rows; give one for each score.")
    sources: dict[str, Source] = {}
    for (model, task, seed), run in runs.items():
        scores = {metric: np.frombuffer(values) for metric, values in run.scores.items()}
        count = len(next(iter(scores.values())))
        if "row" not in roles and count > 1:
            raise DataError(
                f"{path} has {count:,} lines of {seeds} {seed} and no column that names rows; "
                "name it with --columns row=NAME."
            )
        numbers = np.frombuffer(run.numbers, dtype=np.int64) if "row" in roles else None
        of_model = Source(name=model, path=path, kind=TABLE, folds="fold" in roles)
        sources.setdefault(model, of_model).runs.append(
            Run(scores=scores, task=task, seed=None if by_line else seed, rows=numbers)
        )
    return list(sources.values())


def _right(row: Mapping[str, Any], roles: Mapping[str, str], where: str) -> dict[str, float]:
    answer, label = (plain_text(row.get(roles[role])).strip() for role in ("answer", "label"))
    if not label:
        raise DataError(f"{where} has no label; leave the row out of every run.")
    return {"accuracy": float(answer == label)}


# names


def all_under(name: str, sources: list[Source]) -> Source:
    """Return one source of this name with the runs of all, whatever names the file gives."""
    return replace(sources[0], name=name, runs=[run for source in sources for run in source.runs])


def names_apart(paths: Iterable[Path]) -> list[str]:
    """Return the shortest ends of paths, without suffixes, that tell them apart.

    Example:
        >>> names_apart([Path("runs/a.csv"), Path("runs/b.csv")])
        ['a', 'b']
        >>> names_apart([Path("a/scores.csv"), Path("b/scores.csv")])
        ['a', 'b']
    """
    parts = [[*path.parts[:-1], path.name.split(".")[0] or path.name] for path in paths]
    for depth in range(1, max(map(len, parts), default=0) + 1):
        names = [name[-depth] if len(name) >= depth else "/".join(name) for name in parts]
        if len(set(names)) == len(names):
            return names
    return ["/".join(name) for name in parts]
