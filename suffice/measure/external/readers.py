"""Readers of other programs' results, chosen by the content of a file or folder."""

from __future__ import annotations

import fnmatch
import os
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from suffice.data.rows import read_rows
from suffice.errors import ConfigError, DataError
from suffice.measure.external.runs import RowNames, Run, Source, number_of, seed_in
from suffice.measure.external.tables import COLUMN, TABLE, kind_of_text, read_column, read_table
from suffice.measure.metrics import HIGHER, LOWER
from suffice.utils.files import parse_json, read_json

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
    """Return the kind of a file or folder, by its content.

    Raises:
        DataError: if there is nothing, nothing known, or several kinds.
    """
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
    """Return the files below a folder whose names fit, sorted.

    Raises:
        DataError: if there are too many files for a folder of results.
    """
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
