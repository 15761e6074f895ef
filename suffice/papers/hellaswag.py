"""HellaSwag of trained language models, by both scorers, a record for each mechanism."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suffice.errors import DataError
from suffice.files import write_atomic
from suffice.measure.report.tables import Line, Sheet, count, loss
from suffice.papers.results import path_of, write_published
from suffice.papers.rows import machine_line
from suffice.recipes import SMALL, lm_recipe
from suffice.records import decode, encode

NAME, RECIPE, FILE = "hellaswag", "nanogpt_124m", "hellaswag.json"
MECHANISMS = ("standard", "optimised", "efficient")
FEW = 300  # items at small scale, which is minutes
SCORERS = {
    "acc": "acc, harness",
    "acc_norm": "acc_norm, harness",
    "sum": "sum, build-nanogpt",
    "average": "average, build-nanogpt",
}
FIELDS = ("mechanism", "scale", "items", "of", "scorer", "value", "standard_error", "weights")


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What one trained model answers.

    Args:
        mechanism: of its attention.
        scale: of its recipe, "paper" or "small".
        corpus: it was trained on.
        steps: of the training, up to the weights that are kept.
        parameters: of the model.
        validation_loss: of these weights, nats a token.
        weights: sha256 of their file.
        items: how many were asked.
        of: how many there are.
        scores: share of right answers by name of the scorer.
        errors: standard errors by the same names, None for a single item.
        seconds: that the answers took.
        machine: facts about it.
    """

    mechanism: str
    scale: str
    corpus: str
    steps: int
    parameters: int
    validation_loss: float
    weights: str
    items: int
    of: int
    scores: dict[str, float]
    errors: dict[str, float | None]
    seconds: float
    machine: dict[str, Any]


def limit_of(scale: str) -> int | None:
    """Return how many items are asked at a scale, None for all."""
    return None if scale == "paper" else FEW


def digest_of(weights: Path) -> str:
    """Return the sha256 of a file of weights."""
    told = hashlib.sha256()
    with weights.open("rb") as file:
        while block := file.read(1 << 20):
            told.update(block)
    return told.hexdigest()


def read_scored(folder: Path) -> Scored | None:
    """Return what was scored in the folder of a run; None if nothing was, or of other weights.

    Raises:
        DataError: if the file is truncated or altered.
    """
    path, weights = folder / FILE, folder / "model.safetensors"
    if not path.exists() or not weights.exists():
        return None
    found = _decoded(path, Scored)
    return found if found.weights == digest_of(weights) else None


def write_scored(folder: Path, scored: Scored) -> None:
    """Write a record into the folder of its run.

    Raises:
        DataError: if it cannot be written.
    """
    write_atomic(folder / FILE, json.dumps(encode(dataclasses.asdict(scored)), indent=1) + "\n")


@dataclass(frozen=True, kw_only=True)
class PublishedScores:
    """The records that come with the package.

    Args:
        scored: one for each mechanism.
    """

    scored: tuple[Scored, ...] = ()


def published_scores() -> tuple[Scored, ...]:
    """Return what comes with the package.

    Raises:
        DataError: if the file is truncated or altered.
    """
    path = path_of(NAME)
    return _decoded(path, PublishedScores).scored if path.exists() else ()


def publish_scores(found: list[Scored]) -> Path:
    """Write what comes with the package.

    Raises:
        DataError: if the package is not a checkout that can be written.
    """
    return write_published(NAME, {"scored": [dataclasses.asdict(one) for one in found]})


def scores_sheet(found: list[Scored], scale: str) -> Sheet:
    """Lay the scores out, a line for each mechanism; blank where nothing was scored."""
    by_name = {one.mechanism: one for one in found}
    title = lm_recipe(RECIPE, scale=scale).title.removesuffix(f"; {SMALL}")
    small = "" if scale == "paper" else f"; {SMALL}"
    notes = [
        "Share of right answers in percent ± standard error; chance is 25. harness: "
        "lm-evaluation-harness, log-probability of the ending, norm by its characters. "
        "build-nanogpt: loss of the ending, summed or the mean over its tokens. arXiv:2403.01643, "
        "v3 section 4.1, prints 30 to 31 for models of 124M parameters and names no scorer"
        + ("." if scale == "paper" else ": other sizes, not to be held against these.")
    ]
    notes += [
        f"{one.mechanism}: {one.items:,} of {one.of:,} items, trained on {one.corpus} for "
        f"{one.steps:,} steps; answers in {one.seconds / 60:.1f} minutes on "
        f"{machine_line(one.machine)}."
        for one in found
    ]
    return Sheet(
        title=f"{NAME}: {title}{small}",
        columns=("mechanism", "params", "validation loss", *SCORERS.values()),
        lines=tuple(_line(name, by_name.get(name)) for name in MECHANISMS),
        caption=" ".join(notes),
    )


def scores_csv(found: list[Scored]) -> str:
    """Write one line for each score."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(FIELDS)
    for one in found:
        for name, value in one.scores.items():
            error = one.errors[name]
            told = (one.mechanism, one.scale, one.items, one.of, name, value)
            writer.writerow([*told, "" if error is None else error, one.weights])
    return stream.getvalue()


def _line(name: str, one: Scored | None) -> Line:
    if one is None:
        return Line(cells=(name, *[""] * (2 + len(SCORERS))))
    told = []
    for scorer in SCORERS:
        error = one.errors[scorer]
        ends = "" if error is None else f" ± {100 * error:.2f}"
        told.append(f"{100 * one.scores[scorer]:.2f}{ends}")
    return Line(cells=(name, count(one.parameters), loss(one.validation_loss), *told))


def _decoded(path: Path, record: Any) -> Any:
    try:
        given = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path} cannot be read ({error}); delete it, and its models are scored again."
        ) from error
    return decode(record, given, where=str(path))
