"""Some thousand reviews: a bag of words, attention from scratch, and a pretrained encoder.

Run: SUFFICE_DATA=FOLDER python -m benchmarks.starts --work FOLDER [--reviews clothing]
     [--minutes 40] [--seeds 3] [--rows 3000] [--json FILE]

The rows are drawn from the reviews of women's clothing (CC0; five classes) or from the training
part of IMDB (two, cut at 256 tokens). `suffice compare` trains the same folds of them twice: from
scratch, and from MiniLM (`make models`) with its own attention, windows and a sum of features in
the place of the softmax. Every training has one thread. A block ends after `--minutes`, and the
same command goes on where it stopped. The table has the accuracy with its 95% interval over seeds
and test rows, the processor time of one training, the difference to the same model with standard
attention, and its verdict at one point.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from rich.markdown import Markdown

from benchmarks import models
from benchmarks.report import CONSOLE
from suffice.comparison import judge
from suffice.comparison.answers import BAG
from suffice.comparison.metrics import METRICS
from suffice.comparison.results import Results, read_results
from suffice.comparison.scores import Scores
from suffice.comparison.sentence import outcome_of
from suffice.data.files import locate
from suffice.errors import DataError
from suffice.utils.files import write_json


class Reviews(NamedTuple):
    """A file of reviews: its columns of texts and classes, and settings of its comparison."""

    path: str
    columns: str
    settings: tuple[str, ...] = ()


REVIEWS = {
    "clothing": Reviews(
        "text_classification/womens_clothing_reviews/reviews.jsonl.xz", "text,rating"
    ),
    "imdb": Reviews("text_classification/imdb/train.jsonl.xz", "text,label", ("--length", "256")),
}
SCRATCH = ("standard", "standard+window:32")
STARTED = ("standard", "standard+window:32", "standard+window:64", "linear")
GRACE = 120.0  # seconds in which an interrupted training writes its state


def write_rows(path: Path, source: str, rows: int) -> None:
    """Write some reviews as a table, unless it is there."""
    if path.exists():
        return
    place = locate(source)
    if place is None:
        raise DataError(f"there is no {source} below $SUFFICE_DATA; put it there.")
    with lzma.open(place, "rt") as lines:
        reviews = [json.loads(line) for line in lines]
    random.Random(0).shuffle(reviews)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(review) + "\n" for review in reviews[:rows]))


def compare(table: Path, out: Path, mechanisms: tuple[str, ...], end: float, *more: str) -> bool:
    """Train what is missing until a time; return whether the comparison is complete."""
    command = [sys.executable, "-m", "suffice", "compare", "--out", str(out), "--quiet", "--anyway"]
    if (out / "plan.json").exists():
        command.append("--resume")
    else:
        command += ["--data", str(table), *more]
        command += ["--mechanisms", ",".join(mechanisms)]
    running = subprocess.Popen([*command, "--jobs", "1", "--threads", "1"])
    try:
        running.wait(max(1.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGINT)
        try:
            running.wait(GRACE)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
    return (out / "results.json").exists()


def records(results: Results, start: str) -> list[dict[str, Any]]:
    """Return a record of each mechanism of a comparison."""
    scores, verdict = Scores(results, METRICS["accuracy"]), judge(results)
    made = []
    for mechanism, heads in results.pairs():
        found, quality = verdict.find(mechanism, heads), scores.summary(mechanism, heads)
        cells = results.select(mechanism, heads)
        difference = None if found is None else found.difference
        made.append(
            {
                "start": start,
                "mechanism": mechanism,
                "seeds": quality.n,
                "accuracy": [quality.mean, quality.low, quality.high],
                "cpu_seconds": statistics.median(cell.cost_seconds for cell in cells),
                "difference": difference and [difference.mean, difference.low, difference.high],
                "verdict": "baseline" if found is None else outcome_of(found),
            }
        )
    return made


def bag_record(results: Results) -> dict[str, Any]:
    """Return the record of the bag of words that a comparison kept."""
    quality = Scores(results, METRICS["accuracy"]).summary(BAG, 0)
    accuracy = [quality.mean, quality.low, quality.high]
    return {"start": "-", "mechanism": BAG, "seeds": quality.n, "accuracy": accuracy}


def table_of(made: list[dict[str, Any]]) -> str:
    """Return the records as Markdown."""

    def points(values: list[float | None] | None, sign: str) -> str:
        if values is None or values[0] is None:
            return "-"
        mean, *ends = (None if value is None else f"{100 * value:{sign}.1f}" for value in values)
        return mean if None in ends else f"{mean} [{ends[0]}, {ends[1]}]"

    lines = [
        "| starts from | mechanism | accuracy, % | CPU seconds | points to standard | verdict |",
        "|---|---|--:|--:|--:|---|",
    ]
    for one in made:
        seconds = one.get("cpu_seconds")
        cells = (
            one["start"],
            f"`{one['mechanism']}`" if seconds else one["mechanism"],
            points(one["accuracy"], ""),
            "a few" if seconds is None else f"{seconds:.0f}",
            points(one.get("difference"), "+"),
            one.get("verdict", "-"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Train a block, and print the table of what is complete."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--reviews", choices=REVIEWS, default="clothing")
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--seeds", default="3")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    end, table = time.monotonic() + 60 * asked.minutes, asked.work / f"reviews-{asked.rows}.jsonl"
    source = REVIEWS[asked.reviews]
    write_rows(table, source.path, asked.rows)
    options = ("--seeds", asked.seeds, "--columns", source.columns, *source.settings)
    made: list[dict[str, Any]] = []
    for name, mechanisms in (("scratch", SCRATCH), ("MiniLM", STARTED)):
        out = asked.work / name.lower()
        start = () if name == "scratch" else ("--start", str(models.path("minilm")))
        if time.monotonic() < end and not (out / "results.json").exists():
            compare(table, out, mechanisms, end, *options, *start)
        if not (out / "results.json").exists():
            CONSOLE.print(f"{name} is not complete: run the same command again", style="bold")
            continue
        results = read_results(out / "results.json")
        if not made:
            made.append(bag_record(results))
        made += records(results, name)
        facts = {"machine": results.machine, "versions": results.versions}
        facts |= {"rows": asked.rows, "folds": results.folds}
    if made:
        CONSOLE.print(Markdown(table_of(made)))
        print(table_of(made))  # noqa: T201
    if asked.json and made:
        write_json(asked.json, {**facts, "records": made})


if __name__ == "__main__":
    main()
