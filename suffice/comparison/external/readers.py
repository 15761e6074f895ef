"""Readers of other programs' results, chosen by the content of a file or folder."""

from __future__ import annotations

import fnmatch
import math
import os
import re
import zipfile
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffice.comparison.metrics import HIGHER, LOWER
from suffice.data.files import lines
from suffice.data.rows import (
    decode_lines,
    find_delimiter,
    kind_of_file,
    plain_text,
    read_rows,
    refuse_columns,
)
from suffice.errors import ConfigError, DataError, check_known
from suffice.utils.files import parse_json, read_json
from suffice.utils.grammar import split_list

Values = NDArray[np.float64]


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
    runs: list[Run]  # run of each task and trained model
    # "higher" or "lower" by metric, as far as the source tells
    better: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # sentences about choices in reading
    # whether the labels of the seeds are those of the folds of a cross-validation
    folds: bool = False

    @property
    def metrics(self) -> list[str]:
        """Metrics that every run has, in the order of the first."""
        return [m for m in self.runs[0].scores if all(m in run.scores for run in self.runs)]

    @property
    def tasks(self) -> list[str]:
        """Tasks in the order of first appearance."""
        return list(dict.fromkeys(run.task for run in self.runs))

    def described(self) -> str:
        """Say what was read."""
        seeds = len(self.runs) // len(self.tasks)
        text = f"read as {self.kind}: {seeds} {'fold' if self.folds else 'run'}{'s' * (seeds != 1)}"
        if self.runs[0].rows is not None:
            text += f" of {len(self.runs[0].rows):,} rows"
        return text + (f", {len(self.tasks)} tasks" if len(self.tasks) > 1 else "")


def all_under(name: str, sources: list[Source]) -> Source:
    """Return one source of this name with the runs of all, whatever names the file gives."""
    return replace(sources[0], name=name, runs=[run for source in sources for run in source.runs])


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
    for part in (path.stem, path.parent.name):
        if match := SEED.search(part):
            return match[1]
    return None


def names_apart(paths: Iterable[Path]) -> list[str]:
    """Return the shortest ends of paths, without suffixes, that tell them apart.

    Example:
        >>> names_apart([Path("runs/a.csv"), Path("runs/b.csv")])
        ['a', 'b']
        >>> names_apart([Path("a/scores.csv"), Path("b/scores.csv")])
        ['a', 'b']
    """
    parts = [[*path.parts[:-1], path.name.split(".")[0] or path.name] for path in paths]
    deepest = max(map(len, parts))
    for depth in range(1, deepest + 1):
        names = [name[-depth] if len(name) >= depth else "/".join(name) for name in parts]
        if len(set(names)) == len(names):
            return names
    return ["/".join(name) for name in parts]


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
    kinds = _kinds_in(path) if path.is_dir() else {_kind_of_file(path)}
    kinds.discard(None)
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
    """Return the files below a folder whose names fit, sorted."""
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
    kinds: set[str | None] = {TRAINER} if _files_below(folder, STATE) else set()
    kinds |= {LM_EVAL} if _files_below(folder, "samples_*.jsonl") else set()
    logs = [path for path in _files_below(folder, "*.json") if path.name != STATE]
    files = [*_files_below(folder, "*.eval")[:1], *logs[:20]]
    return kinds | {kind for path in files if (kind := _kind_of_file(path)) in (INSPECT, LM_EVAL)}


def _kind_of_file(path: Path) -> str | None:
    if zipfile.is_zipfile(path):
        return INSPECT if path.suffix == ".eval" else kind_of_text(path)
    if path.suffix == ".json":
        content = read_json(path)
        return _kind_of_object(content) if isinstance(content, dict) else None
    kind = TABLE if path.suffix == ".parquet" else kind_of_text(path)
    if kind == TABLE and path.suffix == ".jsonl":
        samples = {"doc_id", "filter", "resps"} <= set(read_rows(str(path))[0])
        return LM_EVAL if samples else TABLE
    return kind


def _kind_of_object(content: Mapping[str, Any]) -> str | None:
    if "log_history" in content:
        return TRAINER
    if {"cells", "baseline", "margin"} <= content.keys():
        return COMPARISON
    if isinstance(content.get("eval"), dict) and "status" in content:
        return INSPECT
    return LM_EVAL if {"results", "configs"} <= content.keys() else None


def read(
    path: Path,
    name: str,
    kind: str,
    *,
    columns: Mapping[str, str],
    metrics: tuple[str, ...],
    row_names: RowNames,
) -> list[Source]:
    """Return what a file or folder holds, a source for each model that a table names."""
    if kind == TABLE:
        sources = read_table(path, name, columns, metrics, row_names)
    elif columns:
        raise ConfigError(f"--columns is for tables, and {path} is {kind}.")
    elif kind == COLUMN:
        sources = read_column(path, name)
    else:
        sources = [READERS[kind](path, name, row_names)]
    if not all(source.runs for source in sources):
        raise DataError(f"{path} holds no scores.")
    return sources


# transformers' Trainer


def _read_trainer(path: Path, name: str, _: RowNames) -> Source:
    states = _files_below(path, STATE) if path.is_dir() else [path]
    latest: dict[Path, tuple[int, Path]] = {}
    for state in states:
        step = re.fullmatch(r"checkpoint-(\d+)", state.parent.name)
        training = state.parent.parent if step else state.parent
        candidate = (int(step[1]) if step else 1 << 62, state)
        latest[training] = max(latest.get(training, candidate), candidate)
    runs = [
        Run(scores=_last_evaluation(state), seed=seed_in(training / STATE))
        for training, (_, state) in sorted(latest.items())
    ]
    note = "Of each training the last evaluation counts."
    return Source(name=name, path=str(path), kind=TRAINER, runs=runs, notes=[note])


def _last_evaluation(path: Path) -> dict[str, np.ndarray]:
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


SPEEDS = ("_runtime", "_per_second", "_time")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


# lm-evaluation-harness

STAMP = re.compile(r"(?:samples_(?P<task>.+)|results)_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)")


def _read_lm_eval(path: Path, name: str, row_names: RowNames) -> Source:
    files = _files_below(path, "samples_*.jsonl") if path.is_dir() else [path]
    if not files or path.suffix == ".json":
        raise DataError(
            f"{path} has no samples, without which nothing is known of rows; run the harness "
            "again with --log_samples."
        )
    source = Source(name=name, path=str(path), kind=LM_EVAL, runs=[])
    skipped: set[str] = set()
    for file in files:
        task, date = _stamp(file)
        scores, rows = _read_samples(file, row_names, skipped)
        source.runs.append(Run(scores=scores, task=task, seed=seed_in(file), rows=rows))
        results = file.with_name(f"results_{date}.json")
        if date is not None and results.exists():
            content = read_json(results)
            source.better |= _directions(content, task, scores)
            source.notes += _contradictions(content, task, scores, results)
    if skipped:
        source.notes.append(f"Metrics without a number for each row: {', '.join(sorted(skipped))}.")
    return source


def _stamp(file: Path) -> tuple[str, str | None]:
    match = STAMP.fullmatch(file.stem)
    return (match["task"], match["date"]) if match else (file.stem.removeprefix("samples_"), None)


def _read_samples(
    file: Path, row_names: RowNames, skipped: set[str]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rows: dict[int, int] = {}
    scores: dict[str, dict[int, float]] = {}
    for number, sample in read_rows(str(file))[1]:
        row = row_names.number(f"{sample.get('doc_id')} {sample.get('doc_hash', '')}".strip())
        rows.setdefault(row, number)
        of_filter = sample.get("filter", "none")
        for metric in sample.get("metrics", ()):
            value = sample.get(metric)
            if not _is_number(value):
                skipped.add(metric)
                continue
            full = metric if of_filter == "none" else f"{metric},{of_filter}"
            if row in scores.setdefault(full, {}):
                raise DataError(f"{file} has row {row_names.name(row)!r} twice; keep one of them.")
            scores[full][row] = number_of(value, f"{file}, line {number}, {metric}")
    complete = {
        metric: np.array([of_metric[row] for row in rows])
        for metric, of_metric in scores.items()
        if of_metric.keys() == rows.keys()
    }
    if not complete:
        lists = "" if skipped or scores else ", as no sample lists its metrics"
        raise DataError(
            f"{file} has no metric with a number for every row{lists}; run a recent "
            "lm-evaluation-harness with --log_samples."
        )
    return complete, np.array(list(rows))


def _directions(content: Mapping[str, Any], task: str, metrics: Iterable[str]) -> dict[str, str]:
    higher_is_better = content.get("higher_is_better", {}).get(task, {})
    by_metric = {name: higher_is_better.get(name.partition(",")[0]) for name in metrics}
    return {n: HIGHER if higher else LOWER for n, higher in by_metric.items() if higher is not None}


def _contradictions(
    content: Mapping[str, Any], task: str, scores: Mapping[str, np.ndarray], file: Path
) -> list[str]:
    """Return a sentence for each mean of samples that the results of their run contradict.

    Shares alone: the harness computes other metrics, such as a perplexity, not as a mean of rows.
    """
    notes = []
    for metric, of_rows in scores.items():
        written = (
            content["results"].get(task, {}).get(metric if "," in metric else f"{metric},none")
        )
        share = _is_number(written) and 0.0 <= of_rows.min() <= of_rows.max() <= 1.0
        if share and abs(of_rows.mean() - written) > CONTRADICTION:
            notes.append(
                f"{file} has {metric} {written:.4g} for {task}, and the mean of its samples, which "
                f"is judged, is {of_rows.mean():.4g}: one of the two is wrong."
            )
    return notes


CONTRADICTION = 1e-3  # difference of a mean from that of its samples; the harness rounds less


# inspect

LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}


def _read_inspect(path: Path, name: str, row_names: RowNames) -> Source:
    files = [path]
    if path.is_dir():
        every = [*_files_below(path, "*.eval"), *_files_below(path, "*.json")]
        files = [file for file in every if _kind_of_file(file) == INSPECT]
    source = Source(name=name, path=str(path), kind=INSPECT, runs=[])
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
        rows = list(next(iter(by_scorer.values())))
        scores = {
            scorer: np.array([float(np.mean(of_scorer[row])) for row in rows])
            for scorer, of_scorer in by_scorer.items()
            if of_scorer.keys() == set(rows)
        }
        if any(len(values) > 1 for values in next(iter(by_scorer.values())).values()):
            note = "Epochs of a sample are averaged."
            source.notes += [] if note in source.notes else [note]
        task = str(header["eval"].get("task", ""))
        run = Run(scores=scores, task=task, seed=seed_in(file), rows=np.array(rows))
        source.runs.append(run)
    return source


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


READERS = {TRAINER: _read_trainer, LM_EVAL: _read_lm_eval, INSPECT: _read_inspect}


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


def parse_columns(text: str | None) -> dict[str, str]:
    """Return the column of each role that a text names.

    Example:
        >>> parse_columns("seed=run,score=acc")
        {'seed': 'run', 'score': 'acc'}
    """
    named = {}
    for word in split_list(text or ""):
        role, equals, column = word.partition("=")
        if not (equals and column):
            raise ConfigError(f"--columns {word}: write ROLE=NAME, such as seed=run,score=acc.")
        check_known("role of a column", role, ROLES)
        named[role] = column
    return named


def _roles(
    path: str, names: list[str], columns: Mapping[str, str], metrics: tuple[str, ...]
) -> tuple[dict[str, str], list[str]]:
    lacking = [column for column in (*columns.values(), *metrics) if column not in names]
    if lacking:
        refuse_columns(path, names, lacking, hint="name others with --columns or --metric.")
    by_name = {name.lower(): name for name in names}
    roles = dict(columns)
    for role, usual in ROLES.items():
        taken = set(roles.values())
        there = [by_name[name] for name in usual if by_name.get(name) not in (None, *taken)]
        if role not in roles and there:
            roles[role] = there[0]
    if {"seed", "fold"} <= roles.keys():
        named = {"seed", "fold"} & columns.keys()
        if len(named) != 1:
            raise DataError(
                f"{path} has seeds ({roles['seed']}) and folds ({roles['fold']}); give one "
                f"partition alone, or name rows and --columns seed={roles['seed']}, which makes "
                "one run of all folds of a seed."
            )
        del roles[({"seed", "fold"} - named).pop()]
    scores = [*metrics] or [name for name in [roles.pop("score", None)] if name]
    roles.pop("score", None)
    if scores:
        roles.pop("answer", None)
    elif "answer" not in roles:
        rest = [name for name in names if name not in roles.values()]
        if len(rest) != 1:
            refuse_columns(path, names, ["score"], hint="name it with --columns score=NAME.")
        scores = rest
    elif "label" not in roles:
        raise DataError(
            f"{path} has answers ({roles['answer']}) and no column of labels to score them by; "
            "name it with --columns label=NAME, or a column of scores."
        )
    return roles, scores


@dataclass
class _Group:
    rows: array[int] = field(default_factory=lambda: array("q"))
    scores: dict[str, array[float]] = field(default_factory=dict)


def read_table(
    path: Path,
    name: str,
    columns: Mapping[str, str],
    metrics: tuple[str, ...],
    row_names: RowNames,
) -> list[Source]:
    """Return what a table holds: a source for each model that a column names, else one."""
    names, rows = read_rows(str(path))
    return read_records(str(path), name, names, rows, columns, metrics, row_names)


def read_records(
    path: str,
    name: str,
    names: list[str],
    numbered_rows: Iterable[tuple[int, Mapping[str, Any]]],
    columns: Mapping[str, str],
    metrics: tuple[str, ...],
    row_names: RowNames,
) -> list[Source]:
    """Return what the rows of a table hold, as `read_table`."""
    roles, metric_names = _roles(path, names, columns, metrics)
    if "group" in roles and "row" not in roles:
        raise DataError(f"{path} has groups and no column that names rows; use --columns row=NAME.")
    groups: dict[tuple[str, str, str | None], _Group] = {}
    seed_column = roles.get("fold", roles.get("seed"))
    by_line = "row" not in roles and seed_column is None
    for number, row in numbered_rows:
        seed = f"line {number}" if by_line else _label(row, seed_column)
        key = (str(row[roles["model"]]) if "model" in roles else name, _task(row, roles), seed)
        group = groups.setdefault(key, _Group())
        if "row" in roles:
            group.rows.append(row_names.number(row[roles["row"]]))
        if "group" in roles:
            row_names.put_into_group(key[1], group.rows[-1], row[roles["group"]])
        where = f"{path}, row {number},"
        for metric, value in _scores(row, roles, metric_names, where):
            group.scores.setdefault(metric, array("d")).append(value)
    if not groups:
        raise DataError(f"{path} has no rows; give one for each score.")
    sources: dict[str, Source] = {}
    for (model, task, seed), group in groups.items():
        scores = {metric: np.frombuffer(values) for metric, values in group.scores.items()}
        several = len(next(iter(scores.values())))
        if "row" not in roles and several > 1:
            raise DataError(
                f"{path} has {several:,} lines of {seed_column} {seed} and no column that names "
                "rows; name it with --columns row=NAME."
            )
        rows = np.frombuffer(group.rows, dtype=np.int64) if "row" in roles else None
        source = sources.setdefault(
            model,
            Source(name=model, path=path, kind=TABLE, runs=[], folds="fold" in roles),
        )
        run = Run(scores=scores, task=task, seed=None if by_line else seed, rows=rows)
        source.runs.append(run)
    return list(sources.values())


def _label(row: Mapping[str, Any], column: str | None) -> str | None:
    return None if column is None else str(row[column])


def _task(row: Mapping[str, Any], roles: Mapping[str, str]) -> str:
    return str(row[roles["task"]]) if "task" in roles else ""


def _scores(
    row: Mapping[str, Any], roles: Mapping[str, str], metrics: list[str], where: str
) -> Iterator[tuple[str, float]]:
    if not metrics:
        answer, label = (plain_text(row.get(roles[role])).strip() for role in ("answer", "label"))
        if not label:
            raise DataError(f"{where} has no label; leave the row out of every run.")
        yield "accuracy", float(answer == label)
    for metric in metrics:
        yield metric, number_of(row.get(metric), where)


def read_column(path: Path, name: str) -> list[Source]:
    """Return the numbers of a file, each the score of one run whose seed is not known."""
    runs = [
        Run(scores={"score": np.array([number_of(line, f"{path}, line {number},")])})
        for number, line in enumerate(decode_lines(lines(path, keep_ends=True), str(path)), 1)
        if line.strip()
    ]
    return [Source(name=name, path=str(path), kind=COLUMN, runs=runs)]


def kind_of_text(path: Path) -> str | None:
    """Return whether a text file is a table or a column of numbers; None for anything else."""
    first = next(decode_lines(lines(path, keep_ends=True), str(path)), "").strip()
    try:
        float(first)
    except ValueError:
        pass
    else:
        return COLUMN
    if kind_of_file(path) or path.suffix.lower() == ".parquet":
        return TABLE
    return TABLE if len(first.split(find_delimiter(first))) > 1 else None
