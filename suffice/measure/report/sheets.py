"""What each table of the report holds, as text; the terminal and the page only lay it out."""

from __future__ import annotations

from dataclasses import replace

from suffice.measure.paper import PaperRow
from suffice.measure.report.further import further_sheet
from suffice.measure.report.lines import PAPER, Line, Sheet, beside, seeds, source, starts
from suffice.measure.report.numbers import (
    bounds,
    count,
    loss,
    percent,
    scaled,
    seconds,
    size,
    spread,
)
from suffice.measure.report.rows import Row
from suffice.measure.results import Results
from suffice.measure.sentence import decision, margin_points, points
from suffice.measure.statistics import Summary
from suffice.measure.verdict import ALPHA, Verdict
from suffice.recipes import SMALL


def sheets(results: Results, verdict: Verdict, rows: list[Row]) -> list[Sheet]:
    """Return the tables of the report: quality on each split, difference to the baseline, cost."""
    counted = "" if results.answers == 1.0 else " of answers"
    quality = [quality_sheet(rows, split, counted=counted) for split in ("train", "test")]
    further = further_sheet(rows)
    quality += [further] if further.lines else []
    found = [*quality, difference_sheet(results, verdict, rows), cost_sheet(rows)]
    if results.scale == "paper":
        return found
    return [beside(replace(one, title=f"{one.title} ({SMALL})"), "size") for one in found]


def quality_sheet(rows: list[Row], split: str, *, counted: str = "") -> Sheet:
    """Accuracy and loss on a split, in the paper's columns; `counted` tells what is not rows."""
    top5 = _has_top5(rows, split)
    lines = []
    for row in rows:
        cells = (row.mechanism, str(row.num_heads), *_quality(row, split, top5))
        lines.append(Line(cells=cells, starts_group=starts(lines, rows, row)))
        if row.paper is not None:
            theirs = (PAPER, "", *_quality_of_paper(row.paper, split, top5))
            lines.append(Line(cells=theirs, from_paper=True))
    return Sheet(
        title=f"Quality, {split}",
        columns=("mechanism", "heads", *_columns(split, top5)),
        lines=tuple(lines),
        caption=f"Mean over {seeds(rows)}; accuracies in percent{counted}; sd over seeds; 95% t "
        "interval of the mean; (rank) among equal heads. " + source(rows),
    )


def difference_sheet(results: Results, verdict: Verdict, rows: list[Row]) -> Sheet:
    """What the verdict stands on: paired differences to the baseline at equal heads."""
    shown = [row for row in rows if row.comparison is not None]
    lines = []
    for row in shown:
        lines.append(Line(cells=_difference(row), starts_group=starts(lines, shown, row)))
    return Sheet(
        title=f"Test accuracy against {results.baseline} at equal heads",
        columns=("mechanism", "heads", "points", "95% CI", "p (Holm)", "claim", "verdict"),
        lines=tuple(lines),
        words=("claim", "verdict"),
        caption="Paired by seed. Suffices: the whole 95% interval lies above "
        f"-{margin_points(verdict.margin)} points. Better or worse: paired t-test, Holm-corrected, "
        f"p < {ALPHA}.",
    )


def cost_sheet(rows: list[Row]) -> Sheet:
    """Parameters, FLOPs, time and memory."""
    columns = ["mechanism", "heads", "params/layer", "model", "FLOPs", "epoch"]
    columns += ["latency", "ratio", "memory"]
    lines = []
    for row in rows:
        lines.append(Line(cells=_cost(row), starts_group=starts(lines, rows, row)))
        if row.paper is not None:
            lines.append(Line(cells=_cost_of_paper(row.paper), from_paper=True))
    batches = sorted({row.batch_size for row in rows if row.batch_size is not None})
    batch = f" of {' or '.join(map(str, batches))} samples" if batches else ""
    return Sheet(
        title="Cost",
        columns=tuple(columns),
        lines=tuple(lines),
        caption="FLOPs: one forward of the attention layers for one sample. Latency: median "
        f"forward of a batch{batch}; ratio: median over rounds against the baseline at "
        "equal heads; memory: most bytes at once in that forward. " + source(rows),
    )


def _has_top5(rows: list[Row], split: str) -> bool:
    """Say whether a split has a top-5 accuracy."""
    return any(getattr(row, f"{split}_top5") is not None for row in rows)


def _columns(split: str, top5: bool) -> list[str]:
    """Name the columns of one split; only the test split carries its spread."""
    accuracy = ["test acc ± sd", "95% CI"] if split == "test" else ["train acc"]
    return [*accuracy, f"{split} loss", *[f"{split} top-5"] * top5]


def _quality(row: Row, split: str, top5: bool) -> list[str]:
    """Lay out our figures of one split."""
    accuracy = getattr(row, f"{split}_accuracy")
    name = f"{split}_accuracy"
    if split == "test":
        cells = [_ranked(row, name, spread(accuracy)), bounds(accuracy)]
    else:
        cells = [_ranked(row, name, percent(accuracy.mean))]
    cells.append(_ranked(row, f"{split}_loss", loss(getattr(row, f"{split}_loss").mean)))
    if top5:
        cells.append(_ranked(row, f"{split}_top5", percent(_mean(getattr(row, f"{split}_top5")))))
    return cells


def _quality_of_paper(paper: PaperRow | None, split: str, top5: bool) -> list[str]:
    """Lay out the paper's figures in the same columns."""
    if paper is None:
        return []
    accuracy = percent(getattr(paper, f"{split}_accuracy"))
    cells = [accuracy, ""] if split == "test" else [accuracy]
    cells.append(loss(getattr(paper, f"{split}_loss")))
    return cells + [percent(getattr(paper, f"{split}_top5"))] * top5


def _difference(row: Row) -> tuple[str, ...]:
    """Lay out one comparison."""
    found = row.comparison
    mean, ends = "-", "-"
    if found.difference is not None:
        mean = points(found.difference.mean)
        if found.difference.sd is not None:
            ends = f"[{points(found.difference.low)}, {points(found.difference.high)}]"
    p_value = "-" if found.p_value is None else f"{found.p_value:.2g}"
    return (
        row.mechanism,
        str(row.num_heads),
        mean,
        ends,
        p_value,
        found.claim,
        decision(found),
    )


def _cost(row: Row) -> tuple[str, ...]:
    """Lay out our costs."""
    latency = "-" if row.latency is None else seconds(row.latency.median)
    times = "-" if row.latency_ratio is None else f"{row.latency_ratio:.2f}x"
    peak = "-" if row.peak_bytes is None else size(row.peak_bytes)
    return (
        row.mechanism,
        str(row.num_heads),
        _ranked(row, "parameters_layer", count(row.parameters_layer)),
        scaled(row.parameters_model),
        _ranked(row, "flops", scaled(row.flops)),
        _ranked(row, "epoch", seconds(row.epoch.mean)),
        _ranked(row, "latency", latency),
        times,
        peak,
    )


def _cost_of_paper(paper: PaperRow) -> tuple[str, ...]:
    """Lay out the paper's costs in the same columns."""
    parameters = count(paper.parameters_layer)
    return (PAPER, "", parameters, "", "", seconds(paper.seconds_per_epoch), "", "", "")


def _ranked(row: Row, name: str, text: str) -> str:
    """Add the place among equal heads, where there is one."""
    return f"{text} ({row.ranks[name]})" if name in row.ranks else text


def _mean(summary: Summary | None) -> float | None:
    """Return a mean, None for what the task does not have."""
    return None if summary is None else summary.mean
