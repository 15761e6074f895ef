"""HellaSwag of trained language models, by both scorers, a record for each mechanism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from suffice.comparison.report.sheet import Column, Sheet, sheet_of
from suffice.comparison.report.tables import count, loss
from suffice.train.recipes import SMALL, lm_recipe
from suffice_papers.results import read_stored
from suffice_papers.rows import machine_line
from suffice_papers.sheets import csv_text

NAME, RECIPE = "hellaswag", "nanogpt_124m"
MECHANISMS = ("standard", "optimised", "efficient")
SCORERS = {
    "acc": "acc, harness",
    "acc_norm": "acc_norm, harness",
    "sum": "sum, build-nanogpt",
    "average": "average, build-nanogpt",
}
FIELDS = ("mechanism", "scale", "items", "of", "scorer", "value", "standard_error", "weights")


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Scores of one trained model."""

    mechanism: str  # mechanism of its attention
    scale: str  # scale of its recipe, "paper" or "small"
    corpus: str  # corpus it was trained on
    steps: int  # steps of the training, up to the weights that are kept
    parameters: int  # parameters of the model
    validation_loss: float  # loss of these weights, nats a token
    weights: str  # sha256 of their file
    items: int  # number of items that were asked
    of: int  # number of all items
    scores: dict[str, float]  # share of right answers by name of the scorer
    errors: dict[str, float | None]  # standard errors by the same names, None for a single item
    seconds: float  # seconds that the answers took
    machine: dict[str, Any]  # facts about the machine


@dataclass(frozen=True, kw_only=True)
class PublishedScores:
    """The records that come with the package."""

    scored: tuple[Scored, ...] = ()


def published_scores() -> tuple[Scored, ...]:
    """Return what comes with the package."""
    return read_stored(PublishedScores, NAME).scored


def scores_sheet(scored: list[Scored], scale: str) -> Sheet:
    """Lay the scores out, a line for each mechanism; blank where nothing was scored."""
    by_name = {one.mechanism: one for one in scored}
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
        for one in scored
    ]
    return sheet_of(
        f"{NAME}: {title}{small}",
        COLUMNS,
        [(name, by_name.get(name)) for name in MECHANISMS],
        caption=" ".join(notes),
    )


def _column(title: str, write: Callable[[Scored], str]) -> Column:
    return Column(title=title, cell=lambda row: "" if row[1] is None else write(row[1]))


def _scorer_column(name: str, title: str) -> Column:
    def write(scored: Scored) -> str:
        error = scored.errors[name]
        ends = "" if error is None else f" ± {100 * error:.2f}"
        return f"{100 * scored.scores[name]:.2f}{ends}"

    return _column(title, write)


COLUMNS = (
    Column(title="mechanism", cell=lambda row: row[0]),
    _column("params", lambda scored: count(scored.parameters)),
    _column("validation loss", lambda scored: loss(scored.validation_loss)),
    *(_scorer_column(name, title) for name, title in SCORERS.items()),
)


def scores_csv(scored: list[Scored]) -> str:
    """Write one line for each score."""
    shared = ("mechanism", "scale", "items", "of", "weights")
    records = [
        {name: getattr(one, name) for name in shared}
        | {"scorer": scorer, "value": value, "standard_error": one.errors[scorer]}
        for one in scored
        for scorer, value in one.scores.items()
    ]
    return csv_text(FIELDS, records)
