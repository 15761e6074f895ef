"""What a comparison prints and writes, whole, against files that are read in review.

`python -m tests.comparison.test_goldens` writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from suffice.comparison.answers import Answers
from suffice.comparison.console import print_report
from suffice.comparison.report.page import notebook_html, page
from suffice.comparison.results import Results, Speed, Tuned
from suffice.comparison.sentence import verdict_record
from suffice.comparison.verdict import judge
from suffice.data.survey import Survey

from .synthetic import from_accuracies, make_cell, make_results, realistic

GOLDENS = Path(__file__).with_name("goldens")
SURE = [0.970, 0.971, 0.969, 0.970, 0.970]
NEAR = [0.968, 0.970, 0.967, 0.968, 0.967]
LOST = [0.900, 0.902, 0.899, 0.900, 0.899]
WILD = [0.995, 0.930, 0.990, 0.940, 0.980]
LATE = [0.990, 0.920, 0.985, 0.935, 0.975]
LABEL = [0, 0, 0, 1] * 25


def timed() -> Results:
    """Speeds of both, one of which has a cache and one was timed in other rounds at other heads."""
    results = from_accuracies({"standard@4": SURE, "efficient@4": NEAR, "standard": SURE})
    cells = [
        replace(cell, state_bytes=2048 if cell.mechanism == "efficient" else None)
        for cell in results.cells
    ]
    latency = {("standard", 4): (1.0, 1.0, 9.0), ("efficient", 4): (0.61, 0.61, 9.0)}
    latency["standard", 1] = (1.0, 1.0)
    shared = {"batch_size": 1, "peak_bytes": 8}
    speeds = [
        Speed(mechanism=name, num_heads=heads, latency=times, **shared)
        for (name, heads), times in latency.items()
    ]
    return make_results(cells, speeds)


def without_flops() -> Results:
    cells = from_accuracies({"standard": SURE, "a": NEAR}).cells
    return make_results([replace(cell, flops=0) for cell in cells])


def no_shared_seed() -> Results:
    return make_results([make_cell("standard", 1, 0), make_cell("a", 1, 1, flops=1)])


def too_easy() -> Results:
    cells = [make_cell("standard", 1, s, test_accuracy=0.996, epochs=4) for s in range(5)]
    cells += [make_cell("a", 1, s, test_accuracy=0.995, epochs=4, flops=600) for s in range(5)]
    return make_results(cells)


def improving() -> Results:
    command = "suffice compare --recipe digits_vit --epochs 3 --out=runs/x --seeds 5 --resume"
    cells = [make_cell("standard", 4, s, epochs=3) for s in range(3)]
    stopped = [replace(make_cell("a", 4, s, epochs=3), stopped_early=True) for s in range(3)]
    return make_results([*cells, *stopped], command=command)


def unlearned_yet_improving() -> Results:
    noise = [0.541, 0.545, 0.538, 0.543, 0.540]
    cells = [
        make_cell(name, seed=seed, epochs=3, test_accuracy=value)
        for name in ("standard", "a")
        for seed, value in enumerate(noise)
    ]
    return make_results(cells, majority=0.541)


def scored() -> Results:
    """BLEU, perplexity and balanced accuracy of two seeds, one of which lacks a score."""
    figures = {
        "standard": ((20.0, 22.0), (9.0, 9.2), (0.30, 0.32)),
        "efficient": ((21.0, 21.0), (8.0, 8.2), (0.31, 0.31)),
        "optimised": ((19.0, 19.0), (9.5, 9.5), (0.29, 0.29)),
    }
    cells = []
    for name, of_mechanism in figures.items():
        for seed in (0, 1):
            named = zip(("bleu", "perplexity", "balanced_accuracy"), of_mechanism, strict=True)
            scores = {score: values[seed] for score, values in named}
            signatures = {"bleu": "nrefs:1|tok:none|version:2.6.0"}
            cells.append(replace(make_cell(name, 4, seed), scores=scores, signatures=signatures))
    cells[-1] = replace(cells[-1], scores={"bleu": 19.0}, signatures={})
    return make_results(cells)


def answered() -> Results:
    """One mechanism is right in all of 100 rows, one gives the most frequent class twice."""
    predictions = {"standard": [LABEL] * 3, "a": [[0] * 100, [0] * 100, LABEL]}
    accuracies = {
        name: [float(np.mean(np.equal(one, LABEL))) for one in of_seeds]
        for name, of_seeds in predictions.items()
    }
    counts = {"train": (20, 10), "test": (75, 25)}
    shares = {"majority": 0.75, "chance": 0.5}
    rows = {"train": 30, "test": 100}
    data = Survey(rows=rows, classes=("no", "yes"), counts=counts, majority_class="no", **shares)
    results = from_accuracies(accuracies, data=data, **shares)
    kept = {
        (name, 1, seed): answers(np.asarray(LABEL), np.asarray(one))
        for name, of_seeds in predictions.items()
        for seed, one in enumerate(of_seeds)
    }
    return replace(results, rows=kept)


def tuned() -> Results:
    """Two mechanisms, of which one took the largest of three learning rates."""
    results = from_accuracies({"standard": SURE, "a": NEAR})
    rates = (1e-4, 1e-3, 1e-2)
    chosen = [
        Tuned(mechanism=name, num_heads=1, rate=rate, rates=rates, losses=losses, seconds=90.0)
        for name, rate, losses in (
            ("standard", 1e-3, ((0.9, 1.0), (0.5, 0.6), (0.7, 0.6))),
            ("a", 1e-2, ((0.9, 1.0), (0.5, 0.6), (0.4, np.inf))),
        )
    ]
    return replace(results, tuned=tuple(chosen), dropped=("b",))


def answers(label: np.ndarray, predicted: np.ndarray) -> Answers:
    """Answers that are sure by 0.9."""
    return Answers(
        label=label,
        predicted=predicted,
        right=(label == predicted).astype(float),
        asked=np.ones(len(label)),
        loss=np.full(len(label), 0.5),
        confidence=np.full(len(label), 0.9),
    )


def moved(sign: int) -> list[float]:
    return [v + sign * (0.004 + e) for v, e in zip(SURE, (1e-4, 0, 0, 1e-4, 0), strict=True)]


FAILED = [*SURE[:2], 0.5, *SURE[3:]]
CASES: dict[str, Callable[[], Results]] = {
    "suffices, timed": timed,
    "no FLOPs": without_flops,
    "undecided": lambda: from_accuracies({"standard": SURE, "a": NEAR, "b": WILD}),
    "one undecided": lambda: from_accuracies({"standard": SURE, "a": WILD}),
    "no shared seed": no_shared_seed,
    "left out": lambda: from_accuracies({"standard": SURE, "a": NEAR[:3]}),
    "stays": lambda: from_accuracies({"standard": SURE, "a": LOST, "b": [v - 0.02 for v in LOST]}),
    "alone": lambda: from_accuracies({"standard": SURE}),
    "better": lambda: from_accuracies({"standard": SURE, "a": moved(1)}),
    "worse": lambda: from_accuracies({"standard": SURE, "a": moved(-1)}),
    "untested": lambda: from_accuracies({"standard": [0.97], "a": [0.96]}),
    "equal cost": lambda: from_accuracies(
        {"standard": SURE, "masked": WILD, "masked_too": LATE, "a": LOST},
        flops={"standard": 1000, "masked": 1000, "masked_too": 1000, "a": 800},
    ),
    "tuned": tuned,
    "log-loss": lambda: replace(answered(), metric="log-loss", margin=0.02, scale="small"),
    "other heads": lambda: from_accuracies(
        {"standard@1": LOST, "a@1": LOST, "standard@4": SURE, "a@4": LOST, "b@4": SURE[:1]}
    ),
    "failed seed": lambda: from_accuracies({"standard": SURE, "a": FAILED, "b": LOST}),
    "floor": lambda: from_accuracies({"standard": SURE, "a": NEAR}, majority=0.1),
    "unlearned, one better": lambda: from_accuracies(
        {"standard": [0.1] * 5, "a": SURE}, majority=0.1
    ),
    "unlearned": lambda: from_accuracies({"standard": [0.1] * 5, "a": [0.1] * 5}, majority=0.1),
    "unlearned, improving": unlearned_yet_improving,
    "too easy": too_easy,
    "improving": improving,
    "answers asked": lambda: from_accuracies(
        {"standard": SURE, "a": NEAR}, answers=8.0, chance=0.125
    ),
    "scores": scored,
    "answers": answered,
    "whole": lambda: realistic(top5=True),
}


def told(results: Results) -> str:
    console = Console(file=StringIO(), width=100)
    print_report(results, judge(results), console, whole=True)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def record(results: Results) -> str:
    return json.dumps(verdict_record(judge(results), results), indent=1, allow_nan=False) + "\n"


def shown(results: Results) -> str:
    """Return the page without its style and figures, and the notebook's view without its own."""
    verdict = judge(results)
    body = page(results, verdict, figures={}).partition("<body>")[2]
    return body + re.sub(r"base64,[^\"]*", "base64,", notebook_html(results, verdict)) + "\n"


WRITTEN = ("answers", "stays", "unlearned", "tuned")  # cases of which JSON and pages are kept
WRITERS = {"txt": told, "json": record, "html": shown}
FILES = [
    *((name, "txt") for name in CASES),
    *((name, kind) for name in WRITTEN for kind in ("json", "html")),
]


def golden(name: str, kind: str) -> Path:
    return GOLDENS / f"{name.replace(', ', '-').replace(' ', '-')}.{kind}"


@pytest.mark.parametrize(("name", "kind"), FILES)
def test_a_comparison_writes_what_it_did(name, kind):
    text = WRITERS[kind](CASES[name]())
    assert text == golden(name, kind).read_text("utf-8")
    if kind == "txt":
        assert max(map(len, text.splitlines())) <= 100
        assert "…" not in text


if __name__ == "__main__":
    for name, kind in FILES:
        golden(name, kind).write_text(WRITERS[kind](CASES[name]()), "utf-8")
