"""The tables of the report: quality on each split, difference to the baseline, cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from suffice.measure.answers import Answers
from suffice.measure.disagreements import answers_by_pair, gaps
from suffice.measure.effort import effort_of, effort_ratio, energy_note, joules, mean_cost
from suffice.measure.metrics import METRICS, Metric, calibration_error, confusion
from suffice.measure.report.sheet import (
    DIM,
    Column,
    Line,
    Sheet,
    mark_different,
    ranks,
    rich_table,
    sheet_of,
)
from suffice.measure.results import Cell, Results, Tuned
from suffice.measure.sentence import (
    decision,
    label,
    notes,
    percentage,
    sentence,
)
from suffice.measure.statistics import Summary, summarise
from suffice.measure.timing import Times, ratio, ratios, summarise_times
from suffice.measure.verdict import ALPHA, Comparison, Scores, Verdict
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
    """Write the interval of a mean accuracy in percent; below three seeds there is none.

    Example:
        >>> bounds(Summary(n=5, mean=0.974, sd=0.0031, low=0.97, high=0.978))
        '97.00–97.80'
        >>> bounds(Summary(n=1, mean=0.974, sd=None, low=None, high=None))
        '-'
    """
    return "-" if summary.low is None else f"{percent(summary.low)}–{percent(summary.high)}"


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
        epoch: typical seconds of an epoch; of a whole training of somebody's own loop.
        train_accuracy: over seeds, as the following ones.
        train_loss: of the scored weights.
        train_top5: None with 5 classes or fewer.
        test_accuracy: with an interval of seeds and rows; None where there is none.
        quality: likewise, the metric of the verdict, oriented so that more is better.
        each: test accuracy of every seed.
        test_loss: on the test split.
        test_top5: None with 5 classes or fewer.
        latency: seconds of one batch, None if not timed.
        latency_ratio: to the baseline with as many heads, None if either was not timed.
        latency_ratios: median and quartiles of that over rounds, likewise.
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
    epoch: float
    train_accuracy: Summary
    train_loss: Summary
    train_top5: Summary | None
    test_accuracy: Summary | None
    quality: Summary
    each: tuple[float, ...]
    test_loss: Summary
    test_top5: Summary | None
    latency: Times | None
    latency_ratio: float | None
    latency_ratios: Times | None
    batch_size: int | None
    peak_bytes: int | None
    comparison: Comparison | None
    paper: Any
    scores: dict[str, Summary] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)


def build_rows(results: Results, verdict: Verdict, paper: PaperRows | None = None) -> list[Row]:
    """Build every row, grouped by heads in rising order, ranked within each group."""
    known = all(cell.test_accuracy is not None for cell in results.cells)
    scores = Scores(results, METRICS["accuracy"]) if known else None
    rows = [_row(results, verdict, scores, paper or {}, *key) for key in results.pairs()]
    rows.sort(key=lambda row: row.num_heads)
    for heads in {row.num_heads for row in rows}:
        _rank([row for row in rows if row.num_heads == heads], verdict.metric)
    return rows


def _row(
    results: Results,
    verdict: Verdict,
    scores: Scores | None,
    paper: PaperRows,
    name: str,
    heads: int,
) -> Row:
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
        epoch=_typical_time(cells),
        train_accuracy=_over(cells, "train_accuracy"),
        train_loss=_over(cells, "train_loss"),
        train_top5=_over(cells, "train_top5"),
        test_accuracy=None if scores is None else scores.summary(name, heads),
        quality=_quality(verdict, name, heads),
        each=tuple(cell.test_accuracy for cell in cells),
        test_loss=_over(cells, "test_loss"),
        test_top5=_over(cells, "test_top5"),
        latency=None if speed is None else summarise_times(speed.latency),
        latency_ratio=ratio(speed.latency, baseline.latency) if same_rounds else None,
        latency_ratios=summarise_times(ratios(speed.latency, baseline.latency))
        if same_rounds
        else None,
        batch_size=None if speed is None else speed.batch_size,
        peak_bytes=None if speed is None else speed.peak_bytes,
        comparison=verdict.find(name, heads),
        paper=paper.get((name, heads)),
        scores={n: summarise([cell.scores[n] for cell in cells]) for n in score_names},
    )


def _quality(verdict: Verdict, name: str, heads: int) -> Summary:
    comparison = verdict.find(name, heads)
    return verdict.qualities[heads] if comparison is None else comparison.quality


def _typical_time(cells: list[Cell]) -> float:
    """Return the median over seeds; of own loops the first seed warms up and does not count."""
    times = [cell.seconds_per_epoch for cell in cells]
    return median(times if cells[0].epochs else times[1:] or times)


def _over(cells: list[Cell], name: str) -> Summary | None:
    """Summarise one measure over seeds; None if it does not exist for this task."""
    values = [getattr(cell, name) for cell in cells]
    return None if None in values else summarise(values)


# measures with a rank: how a value is printed, and whether more is better
RANKED = {
    "train_accuracy": (percent, True),
    "train_loss": (loss, False),
    "train_top5": (percent, True),
    "test_accuracy": (percent, True),
    "test_loss": (loss, False),
    "test_top5": (percent, True),
}
FALLING = ("perplexity",)  # scores that are better the lower they are
FRACTIONS = ("balanced_accuracy",)  # scores that are written in percent


def _rank(rows: list[Row], metric: Metric) -> None:
    measured = {name: [getattr(row, name) for row in rows] for name in RANKED}
    scores = dict.fromkeys(name for row in rows for name in row.scores)
    measured |= {name: [row.scores.get(name) for row in rows] for name in scores}
    falling = FALLING if metric.rising else (*FALLING, metric.name)
    for name, values in measured.items():
        if None in values:
            continue
        plain = (percent if name in FRACTIONS else "{:.2f}".format, name not in falling)
        write, rising = RANKED.get(name, plain)
        numbers = {place: _center(value) for place, value in enumerate(values)}
        for place, rank in ranks(numbers, write, rising=rising).items():
            if rank is not None:
                rows[place].ranks[name] = rank


def _center(value: Summary | Times | float) -> float:
    if isinstance(value, Summary):
        return value.mean
    return value.median if isinstance(value, Times) else value


def tables(
    results: Results, verdict: Verdict, paper: PaperRows | None = None, *, brief: bool = False
) -> list[Sheet]:
    """Return every table of the report that has lines, readable at 100 columns.

    Args:
        results: the comparison.
        verdict: what `judge` returned.
        paper: the paper's rows, shown below ours.
        brief: for 80 columns: leave out what is told of single classes and rows.
    """
    rows = build_rows(results, verdict, paper)
    told = all(row.test_accuracy is not None for row in rows)  # own loops may have another metric
    counted = "" if results.answers == 1.0 else " of answers"
    of_answers = answer_tables(results, verdict)[: 1 if brief else None]
    sheets = [
        *([with_floors(quality_table(rows, "test", counted=counted), results)] if told else []),
        *([] if of_answers and _told(rows) else [scores_table(rows)]),
        *of_answers,
        difference_table(results, verdict, rows, brief=brief),
        cost_table(rows, own=not any(cell.epochs for cell in results.cells)),
        effort_table(results, verdict, brief=brief),
        *([tuning_table(results)] if results.tuned else []),
        quality_table(rows, "train", counted=counted),
    ]
    if all(row.train_accuracy is None for row in rows):  # somebody's own loop does not tell it
        del sheets[-1]
    sheets = [sheet for sheet in sheets if sheet.lines]
    if results.scale == "paper":
        return sheets
    return [mark_different(replace(one, title=f"{one.title} ({SMALL})"), "size") for one in sheets]


def _told(rows: list[Row]) -> bool:
    """Return whether the table of answers holds every further score, and the paper none of them."""
    names = {name for row in rows for name in row.scores}
    printed = any(getattr(row.paper, f"test_{n}", None) is not None for row in rows for n in names)
    return names <= set(FRACTIONS) and not printed


def print_report(
    results: Results, verdict: Verdict, console: Console, paper: PaperRows | None = None
) -> None:
    """Print the verdict, the tables, and the verdict again with its limits.

    Args:
        results: the comparison.
        verdict: what `judge` returned.
        console: where to.
        paper: the paper's rows, shown below ours.
    """
    said = Text(sentence(verdict, results), style="bold")
    console.print(said)
    console.print()
    for sheet in tables(results, verdict, paper, brief=True):
        console.print(rich_table(sheet))
        console.print()
    console.print(said)
    for note in notes(verdict, results):
        console.print(Text(f"- {note}", style=DIM))


NAMES = (
    Column(title="mechanism", cell=lambda row: row.mechanism),
    Column(title="heads", cell=lambda row: str(row.num_heads)),
)


def _measure(title: str, name: str, write: Any) -> Column:
    """Return the column of a measure with its rank, written from its center."""

    def cell(row: Row) -> str:
        value = getattr(row, name)
        return "-" if value is None else ranked(row, name, write(_center(value)))

    return Column(title=title, cell=cell, paper=lambda row: write(getattr(row.paper, name)))


def ranked(row: Row, name: str, text: str) -> str:
    """Add the rank among equal heads, where there is one."""
    return f"{text} ({row.ranks[name]})" if name in row.ranks else text


COVERED = "sd over seeds; 95% CI of other seeds and other test rows, from 3 seeds on; "


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
            _interval_column(rows),
        ]
    columns.append(_measure(f"{split} loss", f"{split}_loss", loss))
    if any(getattr(row, f"{split}_top5") is not None for row in rows):
        columns.append(_measure(f"{split} top-5", f"{split}_top5", percent))
    return _grouped(
        f"Quality, {split}",
        (*NAMES, *columns),
        rows,
        caption=f"Mean over {seeds(rows)}; accuracies in percent{counted}; "
        + ("" if split == "train" else COVERED)
        + "(rank) among equal heads. "
        + source(rows),
    )


def _interval_column(rows: list[Row]) -> Column:
    """Return the interval of each mean; where no row has one, the accuracies of single seeds."""
    if any(row.test_accuracy.low is not None for row in rows):
        return Column(title="95% CI", cell=lambda row: bounds(row.test_accuracy))
    return Column(title="each seed", cell=lambda row: ", ".join(map(percent, row.each)))


def with_floors(sheet: Sheet, results: Results) -> Sheet:
    """Add to a table of test accuracies what learning nothing scores."""
    floors = accuracy_floors(results)
    rest = ("",) * (len(sheet.columns) - 3)
    lines = tuple(
        Line(cells=(name, "", percent(value), *rest), starts_group=number == 0)
        for number, (name, value) in enumerate(floors.items())
    )
    return replace(sheet, lines=sheet.lines + lines)


BLIND = "blind guess"


def accuracy_floors(results: Results) -> dict[str, float]:
    """Return the test accuracy of models that learned nothing, by what they do."""
    floors = {}
    if results.majority is not None:
        floors[most_frequent(results)] = results.majority
    if results.chance is not None:
        floors[BLIND] = results.chance
    return floors


def quality_floors(results: Results, verdict: Verdict) -> dict[str, float]:
    """Return the metric of models that learned nothing, oriented, by what they do."""
    floors = {floor.name: floor.value for floor in verdict.floors.values()}
    if verdict.metric.name == "accuracy":
        floors = accuracy_floors(results) or floors
    return floors


def drawn_ends(row: Row, metric: Metric) -> tuple[float, float, float]:
    """Return the mean metric and the ends of its interval as drawn; few seeds have none."""
    quality = row.quality
    low, high = (quality.mean if end is None else end for end in (quality.low, quality.high))
    low, high = sorted((metric.drawn(low), metric.drawn(high)))
    return low, metric.drawn(quality.mean), high


def validation_floors(results: Results, measure: str) -> dict[str, float]:
    """Return what models that learned nothing have after an epoch, by what they do.

    The majority class is that of the training rows; a loss is that of a model that answers with
    the frequencies of the classes in training. Both are held against the validation rows.

    Args:
        results: the comparison; without counts of its data only the blind guess is known.
        measure: "validation_loss" (nats) or "validation_accuracy" (a fraction).
    """
    data = results.data
    counted = data is not None and {"train", "validation"} <= set(data.counts)
    if measure == "validation_accuracy":
        floors = {} if results.chance is None else {BLIND: results.chance}
        if counted:
            train, validation = (np.array(data.counts[p]) for p in ("train", "validation"))
            share = float(validation[train.argmax()] / validation.sum())
            floors = {most_frequent(results): share, **floors}
        return floors
    if not counted:
        return {}
    train, validation = (np.array(data.counts[p], dtype=float) for p in ("train", "validation"))
    frequencies = (train + 1.0) / (train + 1.0).sum()
    return {"class frequencies": -float(validation @ np.log(frequencies) / validation.sum())}


def most_frequent(results: Results) -> str:
    """Name a model that always gives the class most frequent in training."""
    known = results.data is not None and results.data.majority_class is not None
    return f'always "{results.data.majority_class}"' if known else "most frequent class"


def figure(summary: Summary) -> str:
    """Write a mean and its sd with two decimals, below 1 with three digits.

    Example:
        >>> figure(Summary(n=3, mean=31.5, sd=0.25, low=31.0, high=32.0))
        '31.50 ± 0.25'
        >>> figure(Summary(n=3, mean=0.0315, sd=0.00025, low=0.031, high=0.032))
        '0.0315 ± 0.00025'
    """
    small = abs(summary.mean) < 1.0
    mean = f"{summary.mean:.3g}" if small else f"{summary.mean:.2f}"
    if summary.sd is None:
        return mean
    return f"{mean} ± " + (f"{summary.sd:.2g}" if small else f"{summary.sd:.2f}")


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
            text = spread(summary) if name in FRACTIONS else figure(summary)
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


def difference_table(
    results: Results, verdict: Verdict, rows: list[Row], *, brief: bool = False
) -> Sheet:
    """Return the paired differences to the baseline at equal heads, on which the verdict rests.

    A brief table tells the levels of its intervals below, and leaves to the notes what would decide
    the undecided.
    """
    metric = verdict.metric
    levels = {row.comparison.confidence for row in rows if row.comparison is not None}
    one = len({percentage(level) for level in levels}) == 1

    def mean(row: Row) -> str:
        difference = row.comparison.difference
        return "-" if difference is None else metric.difference(difference.mean)

    def ends(row: Row) -> str:
        difference = row.comparison.difference
        if difference is None or difference.low is None:
            return "-"
        level = "" if one or brief else f" ({percentage(row.comparison.confidence)})"
        return f"[{metric.difference(difference.low)}, {metric.difference(difference.high)}]{level}"

    def p_value(row: Row) -> str:
        return "-" if row.comparison.p_value is None else f"{row.comparison.p_value:.2g}"

    covered = "seeds and test rows" if any(_covers_rows(row) for row in rows) else "seeds"
    return sheet_of(
        f"{metric.title[0].upper()}{metric.title[1:]} against {results.baseline} at equal heads",
        (
            *NAMES,
            Column(title=metric.unit, cell=mean),
            Column(title=f"{percentage(max(levels))} CI" if one else "CI", cell=ends),
            Column(title="p (Holm)", cell=p_value),
            Column(title="claim", cell=lambda row: row.comparison.claim, words=True),
            Column(
                title="verdict",
                cell=lambda row: row.comparison.sufficiency if brief else decision(row.comparison),
                words=True,
            ),
        ),
        [row for row in rows if row.comparison is not None],
        group=lambda row: row.num_heads,
        caption=f"Paired by seed; plus is better. The interval covers {covered}. Suffices: all of "
        f"it lies above -{metric.margin(verdict.margin)} {metric.unit}. Better or worse: "
        f"Holm-corrected p < {ALPHA}." + (_levels(rows) if brief and not one else ""),
    )


def _levels(rows: list[Row]) -> str:
    """Write the confidence of each interval."""
    named: dict[str, list[str]] = {}
    for row in rows:
        if row.comparison is not None:
            level = percentage(row.comparison.confidence)
            named.setdefault(level, []).append(label(row.mechanism, row.num_heads))
    listed = "; ".join(f"{level} of {', '.join(names)}" for level, names in named.items())
    return f" Intervals: {listed}."


def _covers_rows(row: Row) -> bool:
    return row.comparison is not None and row.comparison.rows is not None


MOST_CLASSES = 20  # in a table of classes
MOST_CONFUSED = 12  # in a confusion matrix


def answer_tables(results: Results, verdict: Verdict) -> list[Sheet]:
    """Return what the answers on single test rows tell: metrics, classes, confusion, differences.

    Without answers, or where tokens have the labels, there are none.
    """
    by_pair = answers_by_pair(results)
    if not by_pair or results.data is None or not results.data.classes:
        return []
    names = results.data.classes
    sheets = [_metrics_table(by_pair)]
    if len(names) <= MOST_CLASSES:
        sheets.append(_classes_table(by_pair, names))
    shown = _shown_pair(results, verdict)
    if len(names) <= MOST_CONFUSED and shown in by_pair:
        sheets.append(_confusion_table(by_pair[shown], names, label(*shown)))
    if len(by_pair) > 1:
        sheets.append(_disagreement_table(by_pair, results.baseline))
    return sheets


def _shown_pair(results: Results, verdict: Verdict) -> tuple[str, int]:
    """Return the mechanism that a verdict names, else the best baseline."""
    if verdict.winner is not None:
        return verdict.winner.mechanism, verdict.winner.num_heads
    return results.baseline, max(verdict.qualities, key=lambda h: verdict.qualities[h].mean)


def _mean_of(answers: list[Answers], figure: Callable[[Answers], float]) -> Summary:
    return summarise([figure(one) for one in answers])


def _metrics_table(by_pair: dict[tuple[str, int], list[Answers]]) -> Sheet:
    def column(title: str, figure: Callable[[Answers], float], write: Any) -> Column:
        return Column(title=title, cell=lambda pair: write(_mean_of(by_pair[pair], figure)))

    def nats(summary: Summary) -> str:
        return loss(summary.mean) + ("" if summary.sd is None else f" ± {summary.sd:.3f}")

    return sheet_of(
        "More metrics, test",
        (
            *PAIR_NAMES,
            column(
                "balanced accuracy", lambda a: float(METRICS["balanced"].rows(a).mean()), spread
            ),
            column("macro F1", lambda a: float(METRICS["macro-f1"].rows(a).mean()), spread),
            column("log loss", lambda a: float(a.loss.sum() / a.asked.sum()), nats),
            column("calibration error", calibration_error, spread),
        ),
        list(by_pair),
        group=lambda pair: pair[1],
        caption="Mean ± sd over seeds; in percent but for the loss. Calibration error (ECE): mean "
        "gap between confidence and accuracy, 15 bins; less is better. --metric asks for a verdict "
        "about another of them.",
    )


PAIR_NAMES = (
    Column(title="mechanism", cell=lambda pair: pair[0]),
    Column(title="heads", cell=lambda pair: str(pair[1])),
)


def _classes_table(by_pair: dict[tuple[str, int], list[Answers]], names: tuple[str, ...]) -> Sheet:
    """Return precision, recall and F1 of each class, means over seeds."""
    rows = [(pair, number) for number in range(len(names)) for pair in by_pair]
    counts = {
        pair: np.mean([confusion(one, len(names)) for one in answers], axis=0)
        for pair, answers in by_pair.items()
    }

    def share(above: float, below: float) -> str:
        return "-" if below == 0 else f"{100 * above / below:.1f}"

    def hits(row: tuple[tuple[str, int], int]) -> tuple[float, float, float]:
        pair, number = row
        table = counts[pair]
        return table[number, number], table[:, number].sum(), table[number].sum()

    return sheet_of(
        "Classes, test",
        (
            Column(title="class", cell=lambda row: names[row[1]]),
            Column(title="mechanism", cell=lambda row: row[0][0], words=True),
            Column(title="heads", cell=lambda row: str(row[0][1])),
            Column(title="precision", cell=lambda row: share(hits(row)[0], hits(row)[1])),
            Column(title="recall", cell=lambda row: share(hits(row)[0], hits(row)[2])),
            Column(title="F1", cell=lambda row: share(2 * hits(row)[0], sum(hits(row)[1:]))),
            Column(title="rows", cell=lambda row: count(hits(row)[2])),
        ),
        rows,
        group=lambda row: row[1],
        caption="In percent, over the rows of all seeds together.",
    )


def _confusion_table(answers: list[Answers], names: tuple[str, ...], of: str) -> Sheet:
    table = np.mean([confusion(one, len(names)) for one in answers], axis=0)

    def cell(number: int) -> Callable[[int], str]:
        return lambda row: f"{table[row, number]:.0f}"

    return sheet_of(
        f"Confusion matrix, test: {of}",
        (
            Column(title="class", cell=lambda row: names[row]),
            *(Column(title=f"as {name}", cell=cell(i)) for i, name in enumerate(names)),
        ),
        list(range(len(names))),
        caption="Test rows of each class (down) by the class they were given (across), mean over "
        f"{len(answers)} seed{'s' * (len(answers) > 1)}.",
    )


def _disagreement_table(by_pair: dict[tuple[str, int], list[Answers]], baseline: str) -> Sheet:
    """Return on how many test rows each mechanism and the baseline differ."""
    gap_of = gaps(by_pair, baseline)

    return sheet_of(
        f"Test rows on which {baseline} and others differ",
        (
            *PAIR_NAMES,
            Column(title="right more often", cell=lambda pair: count((gap_of[pair] > 0).sum())),
            Column(title="less often", cell=lambda pair: count((gap_of[pair] < 0).sum())),
            Column(title="equally", cell=lambda pair: count((gap_of[pair] == 0).sum())),
        ),
        list(gap_of),
        group=lambda pair: pair[1],
        caption="How often a row is right, over seeds.",
    )


def effort_table(results: Results, verdict: Verdict, *, brief: bool = False) -> Sheet:
    """Return quality at equal epochs, and what training takes until the loss is the baseline's.

    Args:
        results: the comparison.
        verdict: what `judge` returned.
        brief: for 80 columns: without the quality, and without intervals of ratios.
    """
    pairs = sorted(results.pairs(), key=lambda key: key[1])
    pairs = [pair for pair in pairs if all(cell.epochs for cell in results.select(*pair))]
    efforts = {pair: effort_of(results, *pair) for pair in pairs}

    def over(values: Sequence[float | None], write: Callable[[float], str]) -> str:
        summary = mean_cost(values)
        if summary is None:
            return "not reached"
        part = f" ({summary.n} of {len(values)})" if summary.n < len(values) else ""
        return _with_ends(summary, write) + part

    def relative(pair: tuple[str, int], measure: str, write: Callable[[float], str]) -> str:
        """Write the mean of the baseline, and of others the ratio to it."""
        if pair[0] == results.baseline:
            summary = mean_cost(getattr(efforts[pair], measure))
            return "-" if summary is None else write(summary.mean)
        ratio = effort_ratio(results, *pair, measure)
        if ratio is None:
            return "-"
        return f"{ratio.mean:.2f}x" if brief else _with_ends(ratio, "{:.2f}".format, unit="x")

    def equal_epochs(pair: tuple[str, int]) -> str:
        comparison = verdict.find(*pair)
        if comparison is None or comparison.difference is None:
            return ""
        return _with_ends(comparison.difference, verdict.metric.difference)

    return sheet_of(
        "Cost to the baseline's loss",
        (
            *PAIR_NAMES,
            *([] if brief else [Column(title="at equal epochs", cell=equal_epochs)]),
            Column(title="epochs", cell=lambda p: over(efforts[p].epochs, "{:.1f}".format)),
            Column(title="time", cell=lambda p: relative(p, "seconds", seconds)),
            Column(title="attention FLOPs", cell=lambda p: relative(p, "flops", scaled)),
            *(
                [Column(title="energy", cell=lambda p: relative(p, "joules", joules))]
                if any(cell.joules is not None for cell in results.cells)
                else []
            ),
        ),
        pairs,
        group=lambda pair: pair[1],
        caption=(
            ""
            if brief
            else f"At equal epochs: {verdict.metric.title} against the "
            f"baseline's, {verdict.metric.unit}, as above. "
        )
        + "Costs: training until the validation loss is that of the baseline's scored weights, "
        "seed by seed, between epochs by a straight line; time and FLOPs as multiples of the "
        "baseline's. Geometric means, 95% CI over seeds, from 3 on, where all reach it. Time: of "
        "the processor where it was counted. FLOPs: three forwards of the attention layers for "
        "each sample. " + energy_note(results),
    )


def _with_ends(summary: Summary, write: Callable[[float], str], *, unit: str = "") -> str:
    """Write a mean with the ends of its interval, if it has one."""
    text = f"{write(summary.mean)}{unit}"
    if summary.low is None:
        return text
    return f"{text} [{write(summary.low)}, {write(summary.high)}]"


def tuning_table(results: Results) -> Sheet:
    """Return the validation loss of each learning rate, and which was chosen."""

    def column(at: int, rate: float) -> Column:
        def cell(tuned: Tuned) -> str:
            mean = float(np.mean(tuned.losses[at]))
            return loss(mean) if np.isfinite(mean) else "diverged"

        return Column(title=f"at {rate:g}", cell=cell)

    rates = results.tuned[0].rates
    return sheet_of(
        "Learning rates",
        (
            Column(title="mechanism", cell=lambda tuned: tuned.mechanism),
            Column(title="heads", cell=lambda tuned: str(tuned.num_heads)),
            *(column(at, rate) for at, rate in enumerate(rates)),
            Column(
                title="chosen",
                cell=lambda tuned: f"{tuned.rate:g}" + (", at the edge" if tuned.at_edge else ""),
            ),
        ),
        sorted(results.tuned, key=lambda tuned: tuned.num_heads),
        group=lambda tuned: tuned.num_heads,
        caption=f"Validation loss, mean over {len(results.tuned[0].losses[0])} seeds that are not "
        "compared; the lowest is chosen.",
    )


def cost_table(rows: list[Row], *, own: bool = False) -> Sheet:
    """Return parameters, FLOPs, time and memory; `own`: of somebody's own loop."""

    def times(row: Row) -> str:
        return "-" if row.latency_ratio is None else f"{row.latency_ratio:.2f}x"

    def memory(row: Row) -> str:
        return "-" if row.peak_bytes is None else size(row.peak_bytes)

    timed = (
        Column(
            title="latency",
            cell=lambda row: "-" if row.latency is None else seconds(row.latency.median),
        ),
        Column(title="ratio", cell=times),
        Column(title="memory", cell=memory),
    )
    batches = sorted({row.batch_size for row in rows if row.batch_size is not None})
    batch = f" of {' or '.join(map(str, batches))} samples" if batches else ""
    measured = (
        "Layer, model: parameters. FLOPs: one forward of the attention layers for one sample. "
        f"Epoch: median over seeds. Latency: median forward of a batch{batch}; ratio: median over "
        "rounds against the baseline at equal heads; memory: most bytes at once in that forward."
    )
    if own:
        measured = (
            "Layer: parameters of the first attention layer. Trained: parameters that torch's "
            "optimisers update, and the attention layers'. FLOPs: one forward of the attention "
            "layers for one sample. Training: the whole call, median over seeds without the first, "
            "which may warm up."
        )
    return _grouped(
        "Cost",
        (
            *NAMES,
            Column(
                title="layer",
                cell=lambda row: count(row.parameters_layer),
                paper=lambda row: count(row.paper.parameters_layer),
            ),
            Column(
                title="trained" if own else "model", cell=lambda row: scaled(row.parameters_model)
            ),
            Column(title="FLOPs", cell=lambda row: scaled(row.flops)),
            Column(
                title="training" if own else "epoch",
                cell=lambda row: seconds(row.epoch),
                paper=lambda row: seconds(row.paper.seconds_per_epoch),
            ),
            *([] if own else timed),
        ),
        rows,
        caption=measured + " " + source(rows),
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
