"""The tables of the report: quality on each split, difference to the baseline, cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from statistics import median
from typing import Any

import numpy as np

from suffice.comparison.answers import BAG, Answers
from suffice.comparison.cost_to_target import effort_of, effort_ratio, energy_note, mean_cost
from suffice.comparison.disagreements import answers_by_pair, gaps
from suffice.comparison.metrics import METRICS, Metric, calibration_error, confusion
from suffice.comparison.report.sheet import (
    Column,
    Line,
    Sheet,
    sheet_of,
)
from suffice.comparison.results import ROWS_ALONE, Cell, Results, Tuned
from suffice.comparison.scores import MIN_SEEDS, Scores
from suffice.comparison.sentence import decision, label, percentage
from suffice.comparison.verdict import ALPHA, Comparison, Verdict
from suffice.train.recipes import SCALES, SMALL
from suffice.utils.grammar import format_quantity
from suffice.utils.statistics import Summary, summarise
from suffice.utils.timing import summarise_times

Pair = tuple[str, int]
"""Mechanism and heads, a row of most tables."""

COUNTS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
TIMES = {" s": 1.0, " ms": 1e-3, " us": 1e-6}
SIZES = {" B": 1.0, " KiB": 2.0**10, " MiB": 2.0**20, " GiB": 2.0**30}
ENERGIES = {" J": 1.0, " kJ": 1e3}


# scaled(999_999) is "1.00M", seconds(0.0031) "3.10 ms", size(2**21) "2.00 MiB", joules(812) "812 J"
scaled, seconds, size, joules = (
    partial(format_quantity, units=units, digits=3) for units in (COUNTS, TIMES, SIZES, ENERGIES)
)
count = "{:,.0f}".format


def percent(value: float) -> str:
    return f"{100 * value:.2f}"


def loss(value: float) -> str:
    """Write a loss with three decimals, two from 1 on.

    Example:
        >>> loss(0.06249), loss(2.9)
        ('0.062', '2.90')
    """
    return f"{value:.3f}" if value < 0.9995 else f"{value:.2f}"


def spread(summary: Summary) -> str:
    """Write a mean accuracy and its sd in percent, such as 97.40 ± 0.31."""
    return percent(summary.mean) + ("" if summary.sd is None else f" ± {percent(summary.sd)}")


def bounds(summary: Summary) -> str:
    """Write the interval of a mean accuracy in percent; below three seeds there is none."""
    return "-" if summary.low is None else f"{percent(summary.low)}–{percent(summary.high)}"


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


def tables(results: Results, verdict: Verdict) -> list[Sheet]:
    """Return every table of the report that has lines, readable at 100 columns."""
    sheets = [sheet for sheet in Tables(results, verdict).all() if sheet.lines]
    if results.scale == SCALES[0]:
        return sheets
    return [replace(one, title=f"{one.title} ({SMALL})") for one in sheets]


NAMES = (
    Column(title="mechanism", cell=lambda pair: pair[0]),
    Column(title="heads", cell=lambda pair: str(pair[1])),
)
FALLING = ("perplexity",)  # scores that are better the lower they are
FRACTIONS = ("balanced_accuracy",)  # scores that are written in percent
COVERED = "sd over seeds; 95% CI of other seeds and other test rows, from 3 seeds on; "


@dataclass(frozen=True)
class Tables:
    """The tables of one comparison; their rows are (mechanism, heads), grouped by heads."""

    results: Results  # the comparison
    verdict: Verdict  # verdict that `judge` returned

    def all(self) -> list[Sheet]:
        """Return every table, some of them without lines."""
        cells = self.results.cells
        if self.results.external is not None:  # nothing else is known of them
            return [self.differences()]
        of_answers = answer_tables(self.results, self.verdict)
        return [
            *([self.test_quality()] if self.accuracy is not None else []),
            *([] if of_answers and self._scores_are_in_answers() else [self.scores()]),
            *of_answers,
            self.differences(),
            self.costs(),
            self.costs_to_target(),
            *([tuning_table(self.results)] if self.results.tuned else []),
            *([] if all(c.train_accuracy is None for c in cells) else [self.train_quality()]),
        ]

    @cached_property
    def pairs(self) -> list[Pair]:
        return sorted(self.results.pairs(), key=lambda pair: pair[1])

    @cached_property
    def cells(self) -> dict[Pair, list[Cell]]:
        return {pair: self.results.select(*pair) for pair in self.pairs}

    @cached_property
    def accuracy(self) -> dict[Pair, Summary] | None:
        """Test accuracy with its interval; None where somebody's own loop has another metric."""
        if any(cell.test_accuracy is None for cell in self.results.cells):
            return None
        scores = Scores(self.results, METRICS["accuracy"])
        return {pair: scores.summary(*pair) for pair in self.pairs}

    @cached_property
    def score_names(self) -> list[str]:
        """Names of the further scores that all seeds of some pair have."""
        cells = [cell for of_pair in self.cells.values() for cell in of_pair[:1]]
        names = dict.fromkeys(name for cell in cells for name in cell.scores)
        return [name for name in names if any(self._over(pair, name) for pair in self.pairs)]

    def _over(self, pair: Pair, name: str) -> Summary | None:
        values = [cell.figure(name) for cell in self.cells[pair]]
        return None if None in values else summarise(values)

    def _figure(
        self,
        title: str,
        name: str,
        write: Callable[[float], str],
        *,
        rising: bool = False,
        text: Callable[[Summary], str] | None = None,
    ) -> Column:
        def value(pair: Pair) -> float | None:
            summary = self._over(pair, name)
            return None if summary is None else summary.mean

        def cell(pair: Pair) -> str:
            summary = self._over(pair, name)
            if summary is None:
                return "-"
            return write(summary.mean) if text is None else text(summary)

        return Column(title=title, cell=cell, value=value, write=write, rising=rising)

    def _sheet(self, title: str, columns: Sequence[Column], caption: str, **options: Any) -> Sheet:
        rows = options.pop("rows", self.pairs)
        names = NAMES if self.results.external is None else (replace(NAMES[0], title="name"),)
        return sheet_of(
            title, (*names, *columns), rows, group=lambda pair: pair[1], caption=caption, **options
        )

    def _seeds(self) -> str:
        numbers = [len(cells) for cells in self.cells.values()]
        fewest, most = min(numbers), max(numbers)
        return f"{fewest} seed{'s' * (most > 1)}" if fewest == most else f"{fewest} to {most} seeds"

    def _quality(self, split: str, accuracy: Sequence[Column], covered: str = "") -> Sheet:
        columns = [*accuracy, self._figure(f"{split} loss", f"{split}_loss", loss)]
        if any(cell.figure(f"{split}_top5") is not None for cell in self.results.cells):
            columns.append(self._figure(f"{split} top-5", f"{split}_top5", percent, rising=True))
        counted = "" if self.results.answers == 1.0 else " of answers"
        return self._sheet(
            f"Quality, {split}",
            columns,
            f"Mean over {self._seeds()}; accuracies in percent{counted}; {covered}(rank) among "
            "equal heads.",
        )

    def train_quality(self) -> Sheet:
        """Return accuracy and loss of the scored weights on the training split."""
        return self._quality(
            "train", [self._figure("train acc", "train_accuracy", percent, rising=True)]
        )

    def test_quality(self) -> Sheet:
        """Return accuracy and loss on the test split, and what learning nothing scores there."""

        def each(pair: Pair) -> str:
            return ", ".join(percent(cell.test_accuracy) for cell in self.cells[pair])

        few = all(summary.low is None for summary in self.accuracy.values())
        ends = Column(title="95% CI", cell=lambda pair: bounds(self.accuracy[pair]))
        accuracy = self._figure("test acc ± sd", "test_accuracy", percent, rising=True, text=spread)
        columns = [accuracy, Column(title="each seed", cell=each) if few else ends]
        sheet = self._quality("test", columns, COVERED)
        rest = ("",) * (len(sheet.columns) - 3)
        lines = tuple(
            Line(cells=(name, "", percent(value), *rest), starts_group=number == 0)
            for number, (name, value) in enumerate(accuracy_floors(self.results).items())
        )
        scores = Scores(self.results, METRICS["accuracy"])
        if scores.values(BAG, 0):
            bag = scores.summary(BAG, 0)
            lines += (Line(cells=(BAG, "", spread(bag), bounds(bag), *rest[1:])),)
        return replace(sheet, lines=sheet.lines + lines)

    def _scores_are_in_answers(self) -> bool:
        return set(self.score_names) <= set(FRACTIONS)

    def scores(self) -> Sheet:
        """Return every further score of the test split; no lines where the task has none."""
        falling = FALLING if self.verdict.metric.rising else (*FALLING, self.verdict.metric.name)
        columns = [
            self._figure(
                name.replace("_", " "),
                name,
                percent if name in FRACTIONS else "{:.2f}".format,
                rising=name not in falling,
                text=spread if name in FRACTIONS else figure,
            )
            for name in self.score_names
        ]
        return self._sheet(
            "Further scores, test",
            columns,
            f"Mean over {self._seeds()} ± sd; (rank) among equal heads."
            + (" Balanced accuracy in percent." if set(self.score_names) & set(FRACTIONS) else ""),
            rows=self.pairs if columns else [],
        )

    def differences(self) -> Sheet:
        """Return the paired differences to the baseline, on which the verdict rests."""
        metric = self.verdict.metric
        compared = {
            pair: comparison
            for pair in self.pairs
            if (comparison := self.verdict.find(*pair)) is not None
        }
        levels = {percentage(comparison.confidence) for comparison in compared.values()}

        def quality(comparison: Comparison) -> str:
            return metric.write(comparison.quality.mean)

        def mean(comparison: Comparison) -> str:
            difference = comparison.difference
            return "-" if difference is None else metric.difference(difference.mean)

        def ends(comparison: Comparison) -> str:
            difference = comparison.difference
            if difference is None or difference.low is None:
                return "-"
            level = "" if one else f" ({percentage(comparison.confidence)})"
            low, high = map(metric.difference, (difference.low, difference.high))
            return f"[{low}, {high}]{level}"

        def p_value(comparison: Comparison) -> str:
            return "-" if comparison.p_value is None else f"{comparison.p_value:.2g}"

        def column(title: str, text: Callable[[Comparison], str], *, words: bool = False) -> Column:
            return Column(title=title, cell=lambda pair: text(compared[pair]), words=words)

        one = len(levels) == 1
        external = self.results.external
        name = metric.title  # names of users' own metrics are written as they are
        name = f"Test {name.removeprefix('test ')}" if name.startswith("test ") else name
        title = f"{name} against {self.results.baseline}"
        title += " at equal heads" if external is None else ""
        covered, pairing = "seeds", "" if external is None else external.pairing
        if any(comparison.rows is not None for comparison in compared.values()):
            alone = any(comparison.of_rows_alone for comparison in compared.values())
            covered = "test rows alone" if alone else "seeds and test rows"
            pairing = ROWS_ALONE if alone else pairing
        paired = "Paired by seed" if external is None else f"Paired by: {pairing}"
        explained = f"Below {MIN_SEEDS} seeds there is no interval and no test."
        if self.verdict.has_intervals:
            margin = metric.in_unit(metric.margin(self.verdict.margin))
            explained = (
                f"The interval covers {covered}. Suffices: all of it lies above -{margin}. Better "
                f"or worse: Holm-corrected p < {ALPHA}."
            )
        return self._sheet(
            title,
            (
                *([] if external is None else [column(metric.title, quality)]),
                column(metric.unit or "difference", mean),
                column(f"{min(levels)} CI" if one else "CI", ends),
                column("p (Holm)", p_value),
                column("claim", lambda c: c.claim, words=True),
                column("verdict", decision, words=True),
            ),
            f"{paired}; plus is better. {explained}",
            rows=list(compared),
        )

    def costs(self) -> Sheet:
        """Return parameters, FLOPs, time and memory."""
        own = not any(cell.epochs for cell in self.results.cells)  # somebody's own loop
        speeds = {pair: self.results.speed(*pair) for pair in self.pairs}

        def first(name: str) -> Callable[[Pair], float]:
            return lambda pair: getattr(self.cells[pair][0], name)

        def epoch(pair: Pair) -> float:
            times = [cell.seconds_per_epoch for cell in self.cells[pair]]
            return median(times[1:] or times if own else times)  # the first may warm up

        def latency(pair: Pair) -> float | None:
            speed = speeds[pair]
            return None if speed is None else summarise_times(speed.latency).median

        def ratio(pair: Pair) -> float | None:
            times = self.results.latency_ratios(*pair)
            return None if times is None else median(times)

        def memory(pair: Pair) -> float | None:
            return None if (speed := speeds[pair]) is None else speed.peak_bytes

        def column(
            title: str,
            value: Callable[[Pair], float | None],
            write: Callable[[float], str],
        ) -> Column:
            def text(pair: Pair) -> str:
                number = value(pair)
                return "-" if number is None else write(number)

            return Column(title=title, cell=text)

        sizes = sorted({speed.batch_size for speed in speeds.values() if speed is not None})
        batch = f" of {' or '.join(map(str, sizes))} samples" if sizes else ""
        caption = (
            "Layer, model: parameters. FLOPs: one forward of the attention layers for one sample. "
            f"Epoch: median over seeds. Latency: median forward of a batch{batch}; ratio: median "
            "over rounds against the baseline at equal heads; memory: most bytes at once in that "
            "forward."
        )
        timed = (
            column("latency", latency, seconds),
            column("ratio", ratio, "{:.2f}x".format),
            column("memory", memory, size),
        )
        if own:
            timed = ()
            caption = (
                "Layer: parameters of the first attention layer. Trained: parameters that torch's "
                "optimisers update, and the attention layers'. FLOPs: one forward of the attention "
                "layers, or of what replaces them, for one sample. Training: the whole call, "
                "median over seeds without the first, which may warm up."
            )
        return self._sheet(
            "Cost",
            (
                column("layer", first("parameters_layer"), count),
                column("trained" if own else "model", first("parameters_model"), scaled),
                column("FLOPs", first("flops"), scaled),
                column("training" if own else "epoch", epoch, seconds),
                *timed,
            ),
            caption,
        )

    def costs_to_target(self) -> Sheet:
        """Return what training takes until the loss is the baseline's; quality at equal epochs."""
        results, metric = self.results, self.verdict.metric
        pairs = [pair for pair in self.pairs if all(cell.epochs for cell in self.cells[pair])]
        efforts = {pair: effort_of(results, *pair) for pair in pairs}

        def epochs(pair: Pair) -> str:
            values = efforts[pair].epochs
            summary = mean_cost(values)
            if summary is None:
                return "not reached"
            part = f" ({summary.n} of {len(values)})" if summary.n < len(values) else ""
            return _with_ends(summary, "{:.1f}".format) + part

        def relative(title: str, measure: str, write: Callable[[float], str]) -> Column:
            """Return a column of the baseline's mean, and of others' ratios to it."""

            def cell(pair: Pair) -> str:
                if pair[0] == results.baseline:
                    summary = mean_cost(getattr(efforts[pair], measure))
                    return "-" if summary is None else write(summary.mean)
                ratio = effort_ratio(results, *pair, measure)
                if ratio is None:
                    return "-"
                return _with_ends(ratio, "{:.2f}".format, unit="x")

            return Column(title=title, cell=cell)

        def equal_epochs(pair: Pair) -> str:
            comparison = self.verdict.find(*pair)
            if comparison is None or comparison.difference is None:
                return ""
            return _with_ends(comparison.difference, metric.difference)

        unit = f", {metric.unit}" if metric.unit else ""
        metered = any(cell.joules is not None for cell in results.cells)
        return self._sheet(
            "Cost to the baseline's loss",
            (
                Column(title="at equal epochs", cell=equal_epochs),
                Column(title="epochs", cell=epochs),
                relative("time", "seconds", seconds),
                relative("attention FLOPs", "flops", scaled),
                *([relative("energy", "joules", joules)] if metered else []),
            ),
            f"At equal epochs: {metric.title} against the baseline's{unit}, as above. "
            "Costs: training until the validation loss is that of the baseline's scored weights, "
            "seed by seed, between epochs by a straight line; time and FLOPs as multiples of the "
            "baseline's. Geometric means, 95% CI over seeds, from 3 on, where all reach it. Time: "
            "of the processor where it was counted. FLOPs: three forwards of the attention layers "
            "for each sample. " + energy_note(results),
            rows=pairs,
        )


def _with_ends(summary: Summary, write: Callable[[float], str], *, unit: str = "") -> str:
    text = f"{write(summary.mean)}{unit}"
    if summary.low is None:
        return text
    return f"{text} [{write(summary.low)}, {write(summary.high)}]"


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
            *NAMES,
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
        "gap between confidence and accuracy, 15 bins; lower is better. --metric asks for a "
        "verdict about another of them.",
    )


def _classes_table(by_pair: dict[tuple[str, int], list[Answers]], names: tuple[str, ...]) -> Sheet:
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
    gap_of = gaps(by_pair, baseline)

    return sheet_of(
        f"Test rows on which {baseline} and others differ",
        (
            *NAMES,
            Column(title="right more often", cell=lambda pair: count((gap_of[pair] > 0).sum())),
            Column(title="less often", cell=lambda pair: count((gap_of[pair] < 0).sum())),
            Column(title="equally", cell=lambda pair: count((gap_of[pair] == 0).sum())),
        ),
        list(gap_of),
        group=lambda pair: pair[1],
        caption="How often a row is right, over seeds.",
    )


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


def drawn_ends(quality: Summary, metric: Metric) -> tuple[float, float, float]:
    """Return the mean metric and the ends of its interval as drawn; few seeds have none."""
    low, high = (quality.mean if end is None else end for end in (quality.low, quality.high))
    low, high = sorted((metric.drawn(low), metric.drawn(high)))
    return low, metric.drawn(quality.mean), high


def validation_floors(results: Results, measure: str) -> dict[str, float]:
    """Return what models that learned nothing have after an epoch, by what they do.

    The majority class is that of the training rows; a loss is that of a model that answers with
    the frequencies of the classes in training. Both are held against the validation rows.
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
