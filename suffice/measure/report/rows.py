"""One row per (mechanism, heads): everything measured, averaged over seeds and ranked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from suffice.measure.paper import PaperRow, paper_row, paper_table_of
from suffice.measure.report.numbers import loss
from suffice.measure.results import Cell, Results
from suffice.measure.statistics import Summary, summarise
from suffice.measure.timing import Times, ratio, summarise_times
from suffice.measure.verdict import Comparison, Verdict


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is known about one (mechanism, heads).

    Args:
        mechanism: name of the mechanism.
        num_heads: its heads.
        seeds: number of trained seeds.
        parameters_layer: parameters of one attention layer.
        parameters_model: parameters of the model.
        flops: one forward of the attention layers for one sample.
        epoch: seconds per epoch over seeds.
        train_accuracy: over seeds, as the following ones.
        train_loss: of the scored weights.
        train_top5: None with 5 classes or fewer.
        test_accuracy: what the verdict is about.
        test_loss: on the test split.
        test_top5: None with 5 classes or fewer.
        latency: seconds of one batch, None if not timed.
        latency_ratio: to the baseline with as many heads, None if either was not timed.
        batch_size: samples of that batch, None if not timed.
        peak_bytes: most bytes at once in that forward, None if not measured.
        comparison: against the baseline, None for the baseline.
        paper: the paper's own row, None where it has none.
        scores: further figures of the test split by name, of those that all seeds have.
        ranks: place among equal heads by name of the measure, 1 is best.
    """

    mechanism: str
    num_heads: int
    seeds: int
    parameters_layer: int
    parameters_model: int
    flops: int
    epoch: Summary
    train_accuracy: Summary
    train_loss: Summary
    train_top5: Summary | None
    test_accuracy: Summary
    test_loss: Summary
    test_top5: Summary | None
    latency: Times | None
    latency_ratio: float | None
    batch_size: int | None
    peak_bytes: int | None
    comparison: Comparison | None
    paper: PaperRow | None
    scores: dict[str, Summary] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)


# what is ranked: value as printed, so that equal prints share a place; lower is better
RANKED: dict[str, Callable[[Row], float | None]] = {
    "parameters_layer": lambda row: row.parameters_layer,
    "flops": lambda row: row.flops,
    "epoch": lambda row: float(f"{row.epoch.mean:.3g}"),
    "train_accuracy": lambda row: _falling(row.train_accuracy),
    "train_loss": lambda row: float(loss(row.train_loss.mean)),
    "train_top5": lambda row: _falling(row.train_top5),
    "test_accuracy": lambda row: _falling(row.test_accuracy),
    "test_loss": lambda row: float(loss(row.test_loss.mean)),
    "test_top5": lambda row: _falling(row.test_top5),
    "latency": lambda row: row.latency and float(f"{row.latency.median:.3g}"),
}
FALLING = ("perplexity",)  # scores that are better the lower they are
PRINTED = {"balanced_accuracy": 4}  # digits behind the point, where not two


def build_rows(results: Results, verdict: Verdict) -> list[Row]:
    """Build every row, grouped by heads in rising order, ranked within each group."""
    table = paper_table_of(results.task, results.recipe)
    rows = [_row(results, verdict, table, *key) for key in results.pairs()]
    rows.sort(key=lambda row: row.num_heads)
    for heads in {row.num_heads for row in rows}:
        _rank([row for row in rows if row.num_heads == heads])
    return rows


def _row(results: Results, verdict: Verdict, table: str | None, name: str, heads: int) -> Row:
    """Average the cells of one (mechanism, heads)."""
    cells = results.select(name, heads)
    speed = results.speed(name, heads)
    baseline = results.speed(results.baseline, heads)
    timed = speed is not None and baseline is not None
    same_rounds = timed and len(speed.latency) == len(baseline.latency)
    return Row(
        mechanism=name,
        num_heads=heads,
        seeds=len(cells),
        parameters_layer=cells[0].parameters_layer,
        parameters_model=cells[0].parameters_model,
        flops=cells[0].flops,
        epoch=_over(cells, "seconds_per_epoch"),
        train_accuracy=_over(cells, "train_accuracy"),
        train_loss=_over(cells, "train_loss"),
        train_top5=_over(cells, "train_top5"),
        test_accuracy=_over(cells, "test_accuracy"),
        test_loss=_over(cells, "test_loss"),
        test_top5=_over(cells, "test_top5"),
        latency=None if speed is None else summarise_times(speed.latency),
        latency_ratio=ratio(speed.latency, baseline.latency) if same_rounds else None,
        batch_size=None if speed is None else speed.batch_size,
        peak_bytes=None if speed is None else speed.peak_bytes,
        comparison=verdict.find(name, heads),
        paper=None if table is None else paper_row(table, name, heads),
        scores=_scores(cells),
    )


def _over(cells: list[Cell], name: str) -> Summary | None:
    """Summarise one measure over seeds; None if it does not exist for this task."""
    values = [getattr(cell, name) for cell in cells]
    return None if None in values else summarise(values)


def _scores(cells: list[Cell]) -> dict[str, Summary]:
    """Summarise the further scores that every seed has."""
    names = [name for name in cells[0].scores if all(name in cell.scores for cell in cells)]
    return {name: summarise([cell.scores[name] for cell in cells]) for name in names}


def _score(row: Row, name: str) -> float | None:
    """Return a further score as printed, so that lower is better."""
    if name not in row.scores:
        return None
    value = round(row.scores[name].mean, PRINTED.get(name, 2))
    return value if name in FALLING else -value


def _rank(rows: list[Row]) -> None:
    """Number the rows by each measure; equal values share a place."""
    further = {name: partial(_score, name=name) for row in rows for name in row.scores}
    for name, value in {**RANKED, **further}.items():
        values = [value(row) for row in rows]
        if None in values or len(rows) < 2:
            continue
        for row, own in zip(rows, values, strict=True):
            row.ranks[name] = 1 + sum(other < own for other in values)


def _falling(summary: Summary | None) -> float | None:
    """Return an accuracy as printed, negated so that lower is better."""
    return None if summary is None else -round(summary.mean, 4)
