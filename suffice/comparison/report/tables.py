"""The tables of the report: quality on each split, difference to the baseline, cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from statistics import median
from typing import Any

import numpy as np

from suffice.comparison.answers import BAG, Answers
from suffice.comparison.cost_to_target import costs_to_loss, energy_note, mean_cost, ratio_to
from suffice.comparison.disagreements import answers_by_pair, gaps
from suffice.comparison.metrics import METRICS, calibration_error, confusion
from suffice.comparison.report.sheet import Column, Line, Sheet, sheet_of
from suffice.comparison.results import ROWS_ALONE, Cell, Results, Tuned
from suffice.comparison.scores import MIN_SEEDS, Scores
from suffice.comparison.sentence import decision, percentage
from suffice.comparison.verdict import ALPHA, Comparison, Verdict
from suffice.train.recipes import SCALES, SMALL
from suffice.utils.grammar import format_quantity
from suffice.utils.statistics import Summary, summarise
from suffice.utils.timing import summarise_times

Pair = tuple[str, int]  # mechanism and heads, a row of most tables

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
    """Write a loss with three decimals, two from 1 on."""
    return f"{value:.3f}" if value < 0.9995 else f"{value:.2f}"


def with_sd(summary: Summary, write: Callable[[float], str]) -> str:
    """Write a mean and its sd, such as 97.40 ± 0.31; one value has none."""
    return write(summary.mean) + ("" if summary.sd is None else f" ± {write(summary.sd)}")


def with_interval(summary: Summary, write: Callable[[float], str], unit: str = "") -> str:
    """Write a mean and its interval, such as -0.20 [-0.29, -0.11]; few seeds have none."""
    mean = f"{write(summary.mean)}{unit}"
    return mean if summary.low is None else f"{mean} {interval_of(summary, write)}"


def interval_of(summary: Summary | None, write: Callable[[float], str]) -> str:
    known = summary is not None and summary.low is not None
    return f"[{write(summary.low)}, {write(summary.high)}]" if known else "-"


def score(summary: Summary) -> str:
    """Write a score such as BLEU and its sd with two decimals, below 1 with three digits."""
    return with_sd(summary, ("{:.3g}" if abs(summary.mean) < 1.0 else "{:.2f}").format)


def or_dash(write: Callable[..., str]) -> Callable[..., str]:
    return lambda value: "-" if value is None else write(value)


def tables(results: Results, verdict: Verdict) -> list[Sheet]:
    """Return every table of the report that has lines, readable at 100 columns."""
    small = "" if results.scale == SCALES[0] else f" ({SMALL})"
    sheets = Tables(results, verdict).all()
    return [replace(sheet, title=sheet.title + small) for sheet in sheets if sheet.lines]


NAMES = (
    Column(title="mechanism", cell=lambda pair: pair[0]),
    Column(title="heads", cell=lambda pair: str(pair[1])),
)
FALLING = ("perplexity",)  # scores that are better the lower they are
BALANCED = "balanced_accuracy"  # the score that is a fraction, and written in percent
MOST_CLASSES = 20  # in a table of classes


@dataclass(frozen=True)
class Tables:
    """The tables of one comparison; their rows are (mechanism, heads), grouped by heads."""

    results: Results
    verdict: Verdict

    def all(self) -> list[Sheet]:
        """Return every table, some of them without lines."""
        if self.results.external is not None:  # only scores are known
            return [self.differences()]
        return [
            self.test_quality(),
            self.scores(),
            self.classes(),
            self.disagreements(),
            self.differences(),
            self.costs(),
            self.costs_to_target(),
            self.rates(),
            self.train_quality(),
        ]

    @cached_property
    def pairs(self) -> list[Pair]:
        return sorted(self.results.pairs(), key=lambda pair: pair[1])

    @cached_property
    def cells(self) -> dict[Pair, list[Cell]]:
        return {pair: self.results.select(*pair) for pair in self.pairs}

    @cached_property
    def answers(self) -> dict[Pair, list[Answers]]:
        """Answers to single test rows; empty where they were not kept or rows have no classes."""
        return answers_by_pair(self.results) if self.class_names else {}

    @property
    def class_names(self) -> tuple[str, ...]:
        return () if self.results.data is None else self.results.data.classes

    def _figure(self, pair: Pair, name: str) -> Summary | None:
        values = [cell.figure(name) for cell in self.cells[pair]]
        return None if None in values else summarise(values)

    def _ranked(
        self,
        title: str,
        name: str,
        write: Callable[[float], str],
        *,
        rising: bool = False,
        text: Callable[[Summary], str] | None = None,
    ) -> Column:
        """Return a column of the mean of a cell's figure, ranked among equal heads."""
        summaries = {pair: self._figure(pair, name) for pair in self.pairs}
        return Column(
            title=title,
            cell=lambda pair: or_dash(text or (lambda s: write(s.mean)))(summaries[pair]),
            value=lambda pair: None if summaries[pair] is None else summaries[pair].mean,
            write=write,
            rising=rising,
        )

    def _sheet(
        self, title: str, columns: Sequence[Column], caption: str, rows: Sequence[Pair]
    ) -> Sheet:
        names = NAMES if self.results.external is None else (replace(NAMES[0], title="name"),)
        return sheet_of(
            title, (*names, *columns), rows, group=lambda pair: pair[1], caption=caption
        )

    def _seeds(self) -> str:
        numbers = [len(cells) for cells in self.cells.values()]
        fewest, most = min(numbers), max(numbers)
        return f"{fewest} seed{'s' * (most > 1)}" if fewest == most else f"{fewest} to {most} seeds"

    def _quality(
        self, split: str, accuracy: Sequence[Column], rows: Sequence[Pair], covered: str = ""
    ) -> Sheet:
        columns = [*accuracy, self._ranked(f"{split} loss", f"{split}_loss", loss)]
        if any(cell.figure(f"{split}_top5") is not None for cell in self.results.cells):
            columns.append(self._ranked(f"{split} top-5", f"{split}_top5", percent, rising=True))
        counted = "" if self.results.answers == 1.0 else " of answers"
        caption = f"Mean over {self._seeds()}; accuracies in percent{counted}; {covered}"
        return self._sheet(
            f"Quality, {split}", columns, f"{caption}(rank) among equal heads.", rows
        )

    def train_quality(self) -> Sheet:
        """Return accuracy and loss of the scored weights on the training split."""
        known = any(cell.train_accuracy is not None for cell in self.results.cells)
        accuracy = self._ranked("train acc", "train_accuracy", percent, rising=True)
        return self._quality("train", [accuracy], self.pairs if known else [])

    def test_quality(self) -> Sheet:
        """Return accuracy and loss on the test split, and the scores of learning nothing.

        There are no lines where a user's own loop has another metric.
        """
        if any(cell.test_accuracy is None for cell in self.results.cells):
            return self._sheet("", (), "", [])
        scores = Scores(self.results, METRICS["accuracy"])
        accuracy = {pair: scores.summary(*pair) for pair in self.pairs}

        def each_seed(pair: Pair) -> str:
            return ", ".join(percent(cell.test_accuracy) for cell in self.cells[pair])

        def ends(pair: Pair) -> str:
            return interval_of(accuracy[pair], percent)

        few = all(summary.low is None for summary in accuracy.values())
        spread = partial(with_sd, write=percent)
        columns = [
            self._ranked("test acc ± sd", "test_accuracy", percent, rising=True, text=spread),
            Column(title="each seed", cell=each_seed) if few else Column(title="95% CI", cell=ends),
        ]
        covered = "sd over seeds; 95% CI of other seeds and test rows, from 3 seeds on; "
        sheet = self._quality("test", columns, self.pairs, covered)
        rest = ("",) * (len(sheet.columns) - 3)
        lines = [
            Line(cells=(name, "", percent(value), *rest), starts_group=number == 0)
            for number, (name, value) in enumerate(accuracy_floors(self.results).items())
        ]
        if scores.values(BAG, 0):
            bag = scores.summary(BAG, 0)
            lines.append(Line(cells=(BAG, "", spread(bag), interval_of(bag, percent), *rest[1:])))
        return replace(sheet, lines=(*sheet.lines, *lines))

    def scores(self) -> Sheet:
        """Return the other scores of the test split: of cells, and of answers to single rows."""

        def of_answers(title: str, figure: Callable[[Answers], float], write: Any) -> Column:
            def cell(pair: Pair) -> str:
                known = self.answers.get(pair)
                return with_sd(summarise(list(map(figure, known))), write) if known else "-"

            return Column(title=title, cell=cell)

        def share(name: str) -> Callable[[Answers], float]:
            return lambda answers: float(METRICS[name].rows(answers).mean())

        columns = [
            of_answers("balanced accuracy", share("balanced"), percent),
            of_answers("macro F1", share("macro-f1"), percent),
            of_answers("log loss", lambda a: float(a.loss.sum() / a.asked.sum()), loss),
            of_answers("calibration error", calibration_error, percent),
        ]
        names = dict.fromkeys(name for cells in self.cells.values() for name in cells[0].scores)
        names = [name for name in names if any(self._figure(pair, name) for pair in self.pairs)]
        caption = f"Mean ± sd over {self._seeds()}; (rank) among equal heads."
        if self.answers:
            names = [name for name in names if name != BALANCED]
            caption += (
                " Balanced accuracy, F1 and calibration error in percent. Calibration error (ECE): "
                "mean gap between confidence and accuracy, 15 bins; lower is better. --metric "
                "gives a verdict by another metric."
            )
        else:
            columns = []
            caption += " Balanced accuracy in percent." * (BALANCED in names)
        falling = FALLING if self.verdict.metric.rising else (*FALLING, self.verdict.metric.name)
        for name in names:
            write, text = "{:.2f}".format, score
            if name == BALANCED:
                write, text = percent, partial(with_sd, write=percent)
            title, rising = name.replace("_", " "), name not in falling
            columns.append(self._ranked(title, name, write, rising=rising, text=text))
        return self._sheet("More metrics, test", columns, caption, self.pairs if columns else [])

    def classes(self) -> Sheet:
        """Return precision, recall and F1 of each class."""
        names = self.class_names if len(self.class_names) <= MOST_CLASSES else ()
        counts = {
            pair: np.mean([confusion(one, len(names)) for one in answers], axis=0)
            for pair, answers in (self.answers.items() if names else ())
        }

        def share(times: int, *axes: int) -> Callable[[tuple[Pair, int]], str]:
            """Return a column's text: hits times a number over the sums along axes of counts."""

            def text(row: tuple[Pair, int]) -> str:
                table = counts[row[0]]
                below = sum(table.sum(axis=axis)[row[1]] for axis in axes)
                return "-" if below == 0 else f"{100 * times * table[row[1], row[1]] / below:.1f}"

            return text

        return sheet_of(
            "Classes, test",
            (
                Column(title="class", cell=lambda row: names[row[1]]),
                Column(title="mechanism", cell=lambda row: row[0][0], words=True),
                Column(title="heads", cell=lambda row: str(row[0][1])),
                Column(title="precision", cell=share(1, 0)),
                Column(title="recall", cell=share(1, 1)),
                Column(title="F1", cell=share(2, 0, 1)),
                Column(title="rows", cell=lambda row: count(counts[row[0]][row[1]].sum())),
            ),
            [(pair, number) for number in range(len(names)) for pair in counts],
            group=lambda row: row[1],
            caption="In percent, over the rows of all seeds together.",
        )

    def disagreements(self) -> Sheet:
        """Return on how many test rows mechanisms and the baseline differ."""
        gap_of = gaps(self.answers, self.results.baseline)
        return self._sheet(
            f"Test rows on which {self.results.baseline} and others differ",
            (
                Column(title="right more often", cell=lambda pair: count((gap_of[pair] > 0).sum())),
                Column(title="less often", cell=lambda pair: count((gap_of[pair] < 0).sum())),
                Column(title="equally", cell=lambda pair: count((gap_of[pair] == 0).sum())),
            ),
            "How often a row is right, over seeds.",
            list(gap_of),
        )

    def differences(self) -> Sheet:
        """Return the paired differences to the baseline, on which the verdict rests."""
        metric, external = self.verdict.metric, self.results.external
        found = {pair: self.verdict.find(*pair) for pair in self.pairs}
        compared = {pair: comparison for pair, comparison in found.items() if comparison}
        levels = {percentage(comparison.confidence) for comparison in compared.values()}
        one_level = len(levels) == 1

        def ends(comparison: Comparison) -> str:
            text = interval_of(comparison.difference, metric.difference)
            known = text != "-" and not one_level
            return f"{text} ({percentage(comparison.confidence)})" if known else text

        def column(title: str, text: Callable[[Comparison], str], *, words: bool = False) -> Column:
            return Column(title=title, cell=lambda pair: text(compared[pair]), words=words)

        name = metric.title  # names of users' own metrics are written as they are
        name = f"Test {name.removeprefix('test ')}" if name.startswith("test ") else name
        covered, paired = "seeds", "seed" if external is None else external.pairing
        if any(comparison.rows is not None for comparison in compared.values()):
            covered = "seeds and test rows"
        if any(comparison.of_rows_alone for comparison in compared.values()):
            covered, paired = "test rows alone", ROWS_ALONE if external else "seed"
        explained = f"Below {MIN_SEEDS} seeds there is no interval and no test."
        if self.verdict.has_intervals:
            margin = metric.in_unit(metric.margin(self.verdict.margin))
            explained = (
                f"The interval covers {covered}. Suffices: all of it is above -{margin}. Better "
                f"or worse: Holm-corrected p < {ALPHA}."
            )
        own = (
            []
            if external is None
            else [column(metric.title, lambda c: metric.write(c.quality.mean))]
        )
        return self._sheet(
            f"{name} against {self.results.baseline}{' at equal heads' * (external is None)}",
            (
                *own,
                column(
                    metric.unit or "difference",
                    lambda c: "-" if c.difference is None else metric.difference(c.difference.mean),
                ),
                column(f"{min(levels)} CI" if one_level else "CI", ends),
                column("p (Holm)", lambda c: or_dash("{:.2g}".format)(c.p_value)),
                column("claim", lambda c: c.claim, words=True),
                column("verdict", decision, words=True),
            ),
            f"Paired by {paired}; plus is better. {explained}",
            list(compared),
        )

    def costs(self) -> Sheet:
        """Return parameters, FLOPs, time and memory."""
        own = not any(cell.epochs for cell in self.results.cells)  # a user's own loop
        speeds = {pair: self.results.speed(*pair) for pair in self.pairs}

        def column(title: str, value: Callable[[Pair], Any], write: Callable[[Any], str]) -> Column:
            return Column(title=title, cell=lambda pair: or_dash(write)(value(pair)))

        def training(pair: Pair) -> float:
            times = [cell.seconds_per_epoch for cell in self.cells[pair]]
            return median(times[1:] or times if own else times)  # the first may warm up

        def quartiles(ratios: list[float]) -> str:
            times = summarise_times(ratios)
            return f"{times.median:.2f}x [{times.low:.2f}, {times.high:.2f}]"

        columns = [
            column("layer", lambda pair: self.cells[pair][0].parameters_layer, count),
            column(
                "trained" if own else "model",
                lambda pair: self.cells[pair][0].parameters_model,
                scaled,
            ),
            column("FLOPs", lambda pair: self.cells[pair][0].flops, scaled),
            column("training" if own else "epoch", training, seconds),
        ]
        if own:
            caption = (
                "Layer: parameters of the first attention layer. Trained: parameters that torch's "
                "optimisers update, and those of attention layers. FLOPs: one forward of the "
                "attention layers or their replacements for one sample. Training: the whole call, "
                "median over seeds without the first, which may warm up."
            )
        else:
            columns += [
                column(
                    "latency",
                    lambda pair: speeds[pair] and summarise_times(speeds[pair].latency).median,
                    seconds,
                ),
                column("ratio", lambda pair: self.results.latency_ratios(*pair), quartiles),
                column("memory", lambda pair: speeds[pair] and speeds[pair].peak_bytes, size),
            ]
            sizes = sorted({speed.batch_size for speed in speeds.values() if speed is not None})
            batch = f" of {' or '.join(map(str, sizes))} samples" if sizes else ""
            caption = (
                "Layer, model: parameters. FLOPs: one forward of the attention layers for one "
                f"sample. Epoch: median over seeds. Latency: median forward of a batch{batch}; "
                "ratio to the baseline at equal heads: median and quartiles over rounds; memory: "
                "peak bytes of that forward."
            )
        return self._sheet("Cost", columns, caption, self.pairs)

    def costs_to_target(self) -> Sheet:
        """Return the cost of training down to the baseline's loss; quality at equal epochs."""
        results, metric = self.results, self.verdict.metric
        pairs = [pair for pair in self.pairs if all(cell.epochs for cell in self.cells[pair])]
        bases = [(results.baseline, heads) for heads in {heads for _, heads in pairs}]
        costs = {pair: costs_to_loss(results, *pair) for pair in {*pairs, *bases}}

        def equal_epochs(pair: Pair) -> str:
            comparison = self.verdict.find(*pair)
            if comparison is None or comparison.difference is None:
                return ""
            return with_interval(comparison.difference, metric.difference)

        def epochs(pair: Pair) -> str:
            values = costs[pair]["epochs"].values()
            summary = mean_cost(values)
            if summary is None:
                return "not reached"
            part = f" ({summary.n} of {len(values)})" if summary.n < len(values) else ""
            return with_interval(summary, "{:.1f}".format) + part

        def relative(title: str, measure: str, write: Callable[[float], str]) -> Column:
            """Return a column of the baseline's mean, and of others' ratios to it."""

            def cell(pair: Pair) -> str:
                own, base = costs[pair][measure], costs[results.baseline, pair[1]][measure]
                if pair[0] == results.baseline:
                    return or_dash(lambda s: write(s.mean))(mean_cost(own.values()))
                return or_dash(lambda s: with_interval(s, "{:.2f}".format, "x"))(
                    ratio_to(own, base)
                )

            return Column(title=title, cell=cell)

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
            f"At equal epochs: {metric.title} against the baseline's"
            f"{f', {metric.unit}' if metric.unit else ''}, as above. Costs: training until the "
            "validation loss is that of the baseline's scored weights, by seed, interpolated "
            "between epochs; time and FLOPs as multiples of the baseline's. Geometric means; 95% "
            "CI over seeds, from 3 on, where all reach it. Time: of the processor where it was "
            f"counted. FLOPs: three forwards of the attention layers a sample. "
            + energy_note(results),
            pairs,
        )

    def rates(self) -> Sheet:
        """Return the validation loss of each learning rate, and which was chosen."""
        tuned = sorted(self.results.tuned, key=lambda one: one.num_heads)

        def column(index: int, rate: float) -> Column:
            def cell(one: Tuned) -> str:
                mean = float(np.mean(one.losses[index]))
                return loss(mean) if np.isfinite(mean) else "diverged"

            return Column(title=f"at {rate:g}", cell=cell)

        return sheet_of(
            "Learning rates",
            (
                Column(title="mechanism", cell=lambda one: one.mechanism),
                Column(title="heads", cell=lambda one: str(one.num_heads)),
                *(column(i, rate) for one in tuned[:1] for i, rate in enumerate(one.rates)),
                Column(
                    title="chosen",
                    cell=lambda one: f"{one.rate:g}" + ", at the edge" * one.at_edge,
                ),
            ),
            tuned,
            group=lambda one: one.num_heads,
            caption="Validation loss, mean over "
            f"{len(tuned[0].losses[0]) if tuned else 0} seeds that are not compared; the lowest is "
            "chosen.",
        )


def accuracy_floors(results: Results) -> dict[str, float]:
    """Return the test accuracy of models that learned nothing, by name."""
    known = results.data is not None and results.data.majority_class is not None
    frequent = f'always "{results.data.majority_class}"' if known else "most frequent class"
    floors = {frequent: results.majority, "blind guess": results.chance}
    return {name: value for name, value in floors.items() if value is not None}


def quality_floors(results: Results, verdict: Verdict) -> dict[str, float]:
    """Return the metric of models that learned nothing, oriented, by name."""
    floors = {floor.name: floor.value for floor in verdict.floors.values()}
    accuracies = accuracy_floors(results) if verdict.metric.name == "accuracy" else {}
    return accuracies or floors
