"""What each table of the report holds, as text; the terminal and the page only lay it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from suffice.measure.paper import PaperRow, paper_row, paper_table_of
from suffice.measure.results import Cell, Results
from suffice.measure.sentence import decision, margin_points, notes, points, sentence
from suffice.measure.statistics import Summary, summarise
from suffice.measure.timing import Times, ratio, summarise_times
from suffice.measure.verdict import ALPHA, Comparison, Verdict
from suffice.recipes import SMALL

STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def percent(value: float | None) -> str:
    """Write a fraction as a percentage without its sign.

    Example:
        >>> percent(0.97421), percent(None)
        ('97.42', '-')
    """
    return "-" if value is None else f"{100 * value:.2f}"


def loss(value: float) -> str:
    """Write a loss to three digits behind the point, two from 1 on.

    Example:
        >>> loss(0.06249), loss(2.9)
        ('0.062', '2.90')
    """
    return f"{value:.3f}" if value < 0.9995 else f"{value:.2f}"


def count(value: float) -> str:
    """Write a count in full with thousands apart.

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


PAPER = "paper"  # what stands in place of a mechanism's name before the paper's own figures


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a table.

    Args:
        cells: one text per column.
        from_paper: whether these are the paper's figures rather than ours.
        starts_group: whether a new number of heads starts here.
    """

    cells: tuple[str, ...]
    from_paper: bool = False
    starts_group: bool = False


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One table.

    Args:
        title: what it shows.
        columns: their heads; the first is text, the others are aligned to the right unless
            they are in `words`.
        lines: its lines, in order.
        words: columns that hold words.
        caption: how to read it.
    """

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    words: tuple[str, ...] = ()
    caption: str = ""


def starts(lines: list[Line], rows: list[Row], row: Row) -> bool:
    """Say whether a row opens a new number of heads below others."""
    first = next(r for r in rows if r.num_heads == row.num_heads)
    return bool(lines) and row is first


def seeds(rows: list[Row]) -> str:
    """Write how many seeds stand behind the means."""
    fewest, most = min(row.seeds for row in rows), max(row.seeds for row in rows)
    return f"{fewest} seed{'s' * (most > 1)}" if fewest == most else f"{fewest} to {most} seeds"


def source(rows: list[Row]) -> str:
    """Name where the paper's lines come from, if there are any."""
    sources = sorted({row.paper.source for row in rows if row.paper is not None})
    return f"Lines named {PAPER}: arXiv:2403.01643, {', '.join(sources)}." if sources else ""


def beside(sheet: Sheet, *differ: str) -> Sheet:
    """Say in the title, the caption and before each of the paper's lines that they differ.

    Args:
        sheet: a table.
        differ: in what they differ from ours, such as "size" and "data"; nothing if they do not.

    Example:
        >>> sheet = Sheet(title="a", columns=(), lines=(Line(cells=("paper",), from_paper=True),))
        >>> beside(sheet, "size").lines[0].cells
        ('paper (other size)',)
    """
    if not differ or not any(line.from_paper for line in sheet.lines):
        return sheet
    other = f"other {' and '.join(differ)}"
    name = f"{PAPER} ({other})"
    return replace(
        sheet,
        title=f"{sheet.title}; the paper's lines: {other}",
        lines=tuple(
            replace(line, cells=(name, *line.cells[1:])) if line.from_paper else line
            for line in sheet.lines
        ),
        caption=sheet.caption.replace(f"Lines named {PAPER}:", f"Lines named {name}:").rstrip()
        + " The paper's lines are not to be held against ours, neither figures nor ranks.",
    )


FRACTIONS = ("balanced_accuracy",)  # written in percent


def further_sheet(rows: list[Row]) -> Sheet:
    """Every further score of the test split; no lines where the task has none."""
    names = list(dict.fromkeys(name for row in rows for name in row.scores))
    lines: list[Line] = []
    for row in rows if names else ():
        told = tuple(_written(row, name) for name in names)
        cells = (row.mechanism, str(row.num_heads), *told)
        lines.append(Line(cells=cells, starts_group=starts(lines, rows, row)))
        theirs = tuple(_of_paper(row.paper, name) for name in names)
        if any(theirs):
            lines.append(Line(cells=(PAPER, "", *theirs), from_paper=True))
    from_paper = any(line.from_paper for line in lines)
    return Sheet(
        title="Further scores, test",
        columns=("mechanism", "heads", *(name.replace("_", " ") for name in names)),
        lines=tuple(lines),
        caption=f"Mean over {seeds(rows)} ± sd; (rank) among equal heads. "
        + ("Balanced accuracy in percent. " if set(names) & set(FRACTIONS) else "")
        + (source(rows) if from_paper else ""),
    )


def _written(row: Row, name: str) -> str:
    """Write a score of one row with its place."""
    found = row.scores.get(name)
    if found is None:
        return "-"
    text = spread(found) if name in FRACTIONS else _plain(found)
    return f"{text} ({row.ranks[name]})" if name in row.ranks else text


def _plain(summary: Summary) -> str:
    sd = "" if summary.sd is None else f" ± {summary.sd:.2f}"
    return f"{summary.mean:.2f}{sd}"


def _of_paper(paper: PaperRow | None, name: str) -> str:
    """Write the paper's own score, empty where it prints none."""
    printed = None if paper is None else getattr(paper, f"test_{name}", None)
    return "" if printed is None else f"{printed:.2f}"


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


DIM = "dim"
STYLES = {
    "suffices": "green",
    "does not suffice": "red",
    "better": "green",
    "worse": "red",
    "undecided": "yellow",
}


def tables(results: Results, verdict: Verdict) -> list[Table]:
    """Return the tables of the report, readable at 100 columns."""
    found = sheets(results, verdict, build_rows(results, verdict))
    return [lay_out(sheet) for sheet in found if sheet.lines]


def print_report(results: Results, verdict: Verdict, console: Console) -> None:
    """Print the tables, the verdict and what it does not say.

    Args:
        results: the comparison.
        verdict: what `judge` found.
        console: where to.
    """
    for table in tables(results, verdict):
        console.print(table)
        console.print()
    console.print(Text(sentence(verdict, results), style="bold"))
    for note in notes(verdict, results):
        console.print(Text(f"- {note}", style=DIM))


def lay_out(sheet: Sheet) -> Table:
    """Lay out one table for the terminal."""
    table = Table(
        title=Text(sheet.title, style="bold"),
        caption=Text(sheet.caption, style=DIM),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for i, column in enumerate(sheet.columns):
        words = i == 0 or column in sheet.words
        table.add_column(
            Text(column), justify="left" if words else "right", no_wrap=i == 0, overflow="fold"
        )
    for line in sheet.lines:
        if line.starts_group:
            table.add_section()
        table.add_row(*_cells(line), style=DIM if line.from_paper else None)
    return table


def _cells(line: Line) -> list[Text]:
    """Turn texts into cells that are never read as markup."""
    cells = [Text(cell, style=STYLES.get(cell.partition(":")[0], "")) for cell in line.cells]
    if line.from_paper:
        cells[0] = Text(f"  {line.cells[0]}")
    return cells
