"""The tables of the report: quality on each split, difference to the baseline, cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console
from rich.text import Text

from suffice.measure.report.sheet import (
    DIM,
    Column,
    Sheet,
    mark_different,
    ranks,
    rich_table,
    sheet_of,
)
from suffice.measure.results import Cell, Results
from suffice.measure.sentence import decision, margin_points, notes, points, sentence
from suffice.measure.statistics import Summary, summarise
from suffice.measure.timing import Times, ratio, summarise_times
from suffice.measure.verdict import ALPHA, Comparison, Verdict
from suffice.recipes import SMALL

PaperRows = Mapping[tuple[str, int], Any]
"""The paper's row of (mechanism, heads): fields as of a cell, and its source."""

STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def percent(value: float | None) -> str:
    """Write a fraction as a percentage without its sign.

    Example:
        >>> percent(0.97421), percent(None)
        ('97.42', '-')
    """
    return "-" if value is None else f"{100 * value:.2f}"


def loss(value: float) -> str:
    """Write a loss with three decimals, two from 1 on.

    Example:
        >>> loss(0.06249), loss(2.9)
        ('0.062', '2.90')
    """
    return f"{value:.3f}" if value < 0.9995 else f"{value:.2f}"


def count(value: float) -> str:
    """Write a count in full with separators.

    Example:
        >>> count(66048)
        '66,048'
    """
    return f"{value:,.0f}"


def scaled(value: float) -> str:
    """Write a large number with three digits and a power of a thousand.

    Example:
        >>> scaled(16_777_216), scaled(999_999), scaled(64)
        ('16.8M', '1.00M', '64')
    """
    for step, letter in STEPS:
        if value >= step * 0.9995:
            return f"{_three_digits(value / step)}{letter}"
    return f"{value:.0f}"


def seconds(value: float) -> str:
    """Write a time in the unit that suits it.

    Example:
        >>> seconds(0.0031), seconds(0.000002), seconds(8.31)
        ('3.10 ms', '2.00 us', '8.31 s')
    """
    for step, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= step * 0.9995:
            return f"{_three_digits(value / step)} {unit}"
    return f"{_three_digits(value / 1e-6)} us"


def size(value: float) -> str:
    """Write bytes in binary units.

    Example:
        >>> size(2 * 1024 * 1024), size(512)
        ('2.00 MiB', '512 B')
    """
    for step, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= step * 0.9995:
            return f"{_three_digits(value / step)} {unit}"
    return f"{value:.0f} B"


def spread(summary: Summary) -> str:
    """Write a mean accuracy and its sd in percent.

    Example:
        >>> spread(Summary(n=5, mean=0.974, sd=0.0031, low=0.97, high=0.978))
        '97.40 ± 0.31'
        >>> spread(Summary(n=1, mean=0.974, sd=None, low=None, high=None))
        '97.40'
    """
    return percent(summary.mean) + ("" if summary.sd is None else f" ± {percent(summary.sd)}")


def bounds(summary: Summary) -> str:
    """Write the interval of a mean accuracy in percent.

    Example:
        >>> bounds(Summary(n=5, mean=0.974, sd=0.0031, low=0.97, high=0.978))
        '97.00–97.80'
        >>> bounds(Summary(n=1, mean=0.974, sd=None, low=None, high=None))
        '-'
    """
    return "-" if summary.sd is None else f"{percent(summary.low)}–{percent(summary.high)}"


def _three_digits(value: float) -> str:
    """Write a number with three digits at least, and no more decimals than that."""
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One (mechanism, heads), averaged over its seeds.

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
        scores: further scores of the test split by name, of those that all seeds have.
        ranks: among equal heads by name of the measure, 1 is best; values printed alike share one.
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
    paper: Any
    scores: dict[str, Summary] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)


def build_rows(results: Results, verdict: Verdict, paper: PaperRows | None = None) -> list[Row]:
    """Build every row, grouped by heads in rising order, ranked within each group."""
    rows = [_row(results, verdict, paper or {}, *key) for key in results.pairs()]
    rows.sort(key=lambda row: row.num_heads)
    for heads in {row.num_heads for row in rows}:
        _rank([row for row in rows if row.num_heads == heads])
    return rows


def _row(results: Results, verdict: Verdict, paper: PaperRows, name: str, heads: int) -> Row:
    cells = results.select(name, heads)
    speed = results.speed(name, heads)
    baseline = results.speed(results.baseline, heads)
    timed = speed is not None and baseline is not None
    same_rounds = timed and len(speed.latency) == len(baseline.latency)
    score_names = [n for n in cells[0].scores if all(n in cell.scores for cell in cells)]
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
        paper=paper.get((name, heads)),
        scores={n: summarise([cell.scores[n] for cell in cells]) for n in score_names},
    )


def _over(cells: list[Cell], name: str) -> Summary | None:
    """Summarise one measure over seeds; None if it does not exist for this task."""
    values = [getattr(cell, name) for cell in cells]
    return None if None in values else summarise(values)


# measures with a rank: how a value is printed, and whether more is better
RANKED = {
    "parameters_layer": (count, False),
    "flops": (str, False),
    "epoch": (seconds, False),
    "train_accuracy": (percent, True),
    "train_loss": (loss, False),
    "train_top5": (percent, True),
    "test_accuracy": (percent, True),
    "test_loss": (loss, False),
    "test_top5": (percent, True),
    "latency": (seconds, False),
}
FALLING = ("perplexity",)  # scores that are better the lower they are
FRACTIONS = ("balanced_accuracy",)  # scores that are written in percent


def _rank(rows: list[Row]) -> None:
    measured = {name: [getattr(row, name) for row in rows] for name in RANKED}
    scores = dict.fromkeys(name for row in rows for name in row.scores)
    measured |= {name: [row.scores.get(name) for row in rows] for name in scores}
    for name, values in measured.items():
        if None in values:
            continue
        plain = (percent if name in FRACTIONS else "{:.2f}".format, name not in FALLING)
        write, rising = RANKED.get(name, plain)
        numbers = {place: _center(value) for place, value in enumerate(values)}
        for place, rank in ranks(numbers, write, rising=rising).items():
            if rank is not None:
                rows[place].ranks[name] = rank


def _center(value: Summary | Times | float) -> float:
    if isinstance(value, Summary):
        return value.mean
    return value.median if isinstance(value, Times) else value


def tables(results: Results, verdict: Verdict, paper: PaperRows | None = None) -> list[Sheet]:
    """Return every table of the report that has lines, readable at 100 columns.

    Args:
        results: the comparison.
        verdict: what `judge` returned.
        paper: the paper's rows, shown below ours.
    """
    rows = build_rows(results, verdict, paper)
    counted = "" if results.answers == 1.0 else " of answers"
    sheets = [
        quality_table(rows, "train", counted=counted),
        quality_table(rows, "test", counted=counted),
        scores_table(rows),
        difference_table(results, verdict, rows),
        cost_table(rows),
    ]
    sheets = [sheet for sheet in sheets if sheet.lines]
    if results.scale == "paper":
        return sheets
    return [mark_different(replace(one, title=f"{one.title} ({SMALL})"), "size") for one in sheets]


def print_report(
    results: Results, verdict: Verdict, console: Console, paper: PaperRows | None = None
) -> None:
    """Print the tables, the verdict and its limits.

    Args:
        results: the comparison.
        verdict: what `judge` returned.
        console: where to.
        paper: the paper's rows, shown below ours.
    """
    for sheet in tables(results, verdict, paper):
        console.print(rich_table(sheet))
        console.print()
    console.print(Text(sentence(verdict, results), style="bold"))
    for note in notes(verdict, results):
        console.print(Text(f"- {note}", style=DIM))


NAMES = (
    Column(title="mechanism", cell=lambda row: row.mechanism),
    Column(title="heads", cell=lambda row: str(row.num_heads)),
)


def _measure(title: str, name: str, write: Any, *, paper: bool = True) -> Column:
    """Return the column of a measure with its rank, written from its center."""

    def cell(row: Row) -> str:
        value = getattr(row, name)
        return "-" if value is None else ranked(row, name, write(_center(value)))

    of_paper = {"epoch": "seconds_per_epoch"}.get(name, name)
    theirs = (lambda row: write(getattr(row.paper, of_paper))) if paper else (lambda _row: "")
    return Column(title=title, cell=cell, paper=theirs)


def ranked(row: Row, name: str, text: str) -> str:
    """Add the rank among equal heads, where there is one."""
    return f"{text} ({row.ranks[name]})" if name in row.ranks else text


def quality_table(rows: list[Row], split: str, *, counted: str = "") -> Sheet:
    """Return accuracy and loss on a split in the paper's columns; `counted` names other units."""
    columns = [_measure("train acc", "train_accuracy", percent)]
    if split == "test":
        columns = [
            Column(
                title="test acc ± sd",
                cell=lambda row: ranked(row, "test_accuracy", spread(row.test_accuracy)),
                paper=lambda row: percent(row.paper.test_accuracy),
            ),
            Column(title="95% CI", cell=lambda row: bounds(row.test_accuracy)),
        ]
    columns.append(_measure(f"{split} loss", f"{split}_loss", loss))
    if any(getattr(row, f"{split}_top5") is not None for row in rows):
        columns.append(_measure(f"{split} top-5", f"{split}_top5", percent))
    return _grouped(
        f"Quality, {split}",
        (*NAMES, *columns),
        rows,
        caption=f"Mean over {seeds(rows)}; accuracies in percent{counted}; sd over seeds; 95% t "
        "interval of the mean; (rank) among equal heads. " + source(rows),
    )


def scores_table(rows: list[Row]) -> Sheet:
    """Return every further score of the test split; no lines where the task has none."""
    names = list(dict.fromkeys(name for row in rows for name in row.scores))

    def printed(row: Row, name: str) -> float | None:
        return getattr(row.paper, f"test_{name}", None)

    def column(name: str) -> Column:
        def cell(row: Row) -> str:
            summary = row.scores.get(name)
            if summary is None:
                return "-"
            sd = "" if summary.sd is None else f" ± {summary.sd:.2f}"
            text = spread(summary) if name in FRACTIONS else f"{summary.mean:.2f}{sd}"
            return ranked(row, name, text)

        def paper(row: Row) -> str:
            value = printed(row, name)
            return "" if value is None else f"{value:.2f}"

        return Column(title=name.replace("_", " "), cell=cell, paper=paper)

    shown = rows if names else []
    in_paper = [row for row in shown if any(printed(row, name) is not None for name in names)]
    return sheet_of(
        "Further scores, test",
        (*NAMES, *map(column, names)),
        shown,
        group=lambda row: row.num_heads,
        in_paper=lambda row: row in in_paper,
        caption=f"Mean over {seeds(rows)} ± sd; (rank) among equal heads. "
        + ("Balanced accuracy in percent. " if set(names) & set(FRACTIONS) else "")
        + (source(rows) if in_paper else ""),
    )


def difference_table(results: Results, verdict: Verdict, rows: list[Row]) -> Sheet:
    """Return the paired differences to the baseline at equal heads, on which the verdict rests."""

    def mean(row: Row) -> str:
        difference = row.comparison.difference
        return "-" if difference is None else points(difference.mean)

    def ends(row: Row) -> str:
        difference = row.comparison.difference
        if difference is None or difference.sd is None:
            return "-"
        return f"[{points(difference.low)}, {points(difference.high)}]"

    def p_value(row: Row) -> str:
        return "-" if row.comparison.p_value is None else f"{row.comparison.p_value:.2g}"

    return sheet_of(
        f"Test accuracy against {results.baseline} at equal heads",
        (
            *NAMES,
            Column(title="points", cell=mean),
            Column(title="95% CI", cell=ends),
            Column(title="p (Holm)", cell=p_value),
            Column(title="claim", cell=lambda row: row.comparison.claim, words=True),
            Column(title="verdict", cell=lambda row: decision(row.comparison), words=True),
        ),
        [row for row in rows if row.comparison is not None],
        group=lambda row: row.num_heads,
        caption="Paired by seed. Suffices: the whole 95% interval lies above "
        f"-{margin_points(verdict.margin)} points. Better or worse: paired t-test, Holm-corrected, "
        f"p < {ALPHA}.",
    )


def cost_table(rows: list[Row]) -> Sheet:
    """Return parameters, FLOPs, time and memory."""

    def times(row: Row) -> str:
        return "-" if row.latency_ratio is None else f"{row.latency_ratio:.2f}x"

    def memory(row: Row) -> str:
        return "-" if row.peak_bytes is None else size(row.peak_bytes)

    batches = sorted({row.batch_size for row in rows if row.batch_size is not None})
    batch = f" of {' or '.join(map(str, batches))} samples" if batches else ""
    return _grouped(
        "Cost",
        (
            *NAMES,
            _measure("params/layer", "parameters_layer", count),
            Column(title="model", cell=lambda row: scaled(row.parameters_model)),
            _measure("FLOPs", "flops", scaled, paper=False),
            _measure("epoch", "epoch", seconds),
            _measure("latency", "latency", seconds, paper=False),
            Column(title="ratio", cell=times),
            Column(title="memory", cell=memory),
        ),
        rows,
        caption="FLOPs: one forward of the attention layers for one sample. Latency: median "
        f"forward of a batch{batch}; ratio: median over rounds against the baseline at "
        "equal heads; memory: most bytes at once in that forward. " + source(rows),
    )


def _grouped(title: str, columns: tuple[Column, ...], rows: list[Row], *, caption: str) -> Sheet:
    return sheet_of(
        title,
        columns,
        rows,
        group=lambda row: row.num_heads,
        in_paper=lambda row: row.paper is not None,
        caption=caption,
    )


def seeds(rows: list[Row]) -> str:
    """Write how many seeds the means are over."""
    fewest, most = min(row.seeds for row in rows), max(row.seeds for row in rows)
    return f"{fewest} seed{'s' * (most > 1)}" if fewest == most else f"{fewest} to {most} seeds"


def source(rows: list[Row]) -> str:
    """Name where the paper's lines come from, if there are any."""
    sources = sorted({row.paper.source for row in rows if row.paper is not None})
    return f"Lines named paper: arXiv:2403.01643, {', '.join(sources)}." if sources else ""
