"""The metrics that a verdict can be about: their value, the share of each row, the margin."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from suffice.comparison.answers import Answers
from suffice.errors import ConfigError, check_known

if TYPE_CHECKING:
    from suffice.comparison.results import Cell


Values = NDArray[np.float64]
HIGHER, LOWER = "higher", "lower"
LOGARITHMS = ("perplexity", "ratio")  # kinds whose oriented value is a logarithm
LARGEST = 700.0  # exponent whose power of e is a float


@dataclass(frozen=True)
class Metric:
    """A figure of the test split, oriented so that more is better."""

    name: str  # value of `--metric`
    title: str  # name in tables and sentences
    # "share" (0 to 1, written in percent, differences in points), "loss" (nats; the oriented value
    # is minus the loss), "perplexity" (as "loss", written as its power of e, differences in percent
    # of it), "value" (a figure of somebody's own loop, in its own unit) or "ratio" (such a figure,
    # above 0, whose differences are in percent of it; the oriented value is its logarithm)
    kind: str
    # one number a row whose mean over rows is the metric exactly, and whose spread over rows is
    # that of the metric: the row's own score, or the metric plus the row's influence on it (the
    # infinitesimal jackknife); None for an unknown formula
    rows: Callable[[Answers], Values] | None = field(default=None, repr=False)
    needs: str = ""  # part of the answers that it takes: "labels", "ngrams" or ""
    better: str = HIGHER  # direction of "value" and "ratio"

    @property
    def unit(self) -> str:
        """Of differences and of the margin; a value of somebody's own loop has none."""
        units = {"share": "points", "loss": "hundredths of a nat", "value": ""}
        return units.get(self.kind, "percent")

    def in_unit(self, number: str) -> str:
        return f"{number} {self.unit}".rstrip()

    @property
    def scale(self) -> float:
        """What a difference or margin is multiplied by to be written in `unit`."""
        return 1.0 if self.kind == "value" else 100.0

    @property
    def rising(self) -> bool:
        """Whether more of what is written is better."""
        if self.kind in ("value", "ratio"):
            return self.better == HIGHER
        return self.kind == "share"

    def oriented(self, natural: float) -> float:
        """Return the oriented value of a figure of somebody's own loop."""
        sign = 1.0 if self.rising else -1.0
        return sign * (math.log(natural) if self.kind == "ratio" else natural)

    def natural(self, value: float) -> float:
        """Return an oriented value as it is written: a fraction, nats, or a perplexity."""
        signed = value if self.rising else -value
        return math.exp(min(signed, LARGEST)) if self.kind in LOGARITHMS else signed

    def difference(self, value: float) -> str:
        """Write a difference of oriented values in `unit`, signed unless it is zero.

        Example:
            >>> METRICS["accuracy"].difference(-0.002), own_metric("rmse", LOWER).difference(0.25)
            ('-0.20', '+0.25')
        """
        text = f"{value:+.3g}" if self.kind == "value" else f"{100 * value:+.2f}"
        return text[1:] if float(text) == 0.0 else text

    def margin(self, margin: float) -> str:
        """Write a margin in `unit`.

        Example:
            >>> METRICS["accuracy"].margin(0.01), own_metric("rmse", LOWER).margin(2.5)
            ('1.0', '2.5')
        """
        if self.kind == "value":
            return f"{margin:.3g}"
        tenths = f"{100 * margin:.1f}"
        exact = abs(float(tenths) - 100 * margin) < 1e-9  # noqa: PLR2004
        return tenths if exact else f"{100 * margin:.3g}"

    def drawn(self, value: float) -> float:
        """Return an oriented value as figures show it: percent, nats, or a perplexity."""
        return 100.0 * value if self.kind == "share" else self.natural(value)

    @property
    def axis(self) -> str:
        """What the axis of a figure is called: the title with the unit and the worse direction.

        Example:
            >>> METRICS["accuracy"].axis, METRICS["perplexity"].axis
            ('test accuracy, %', 'test perplexity, lower is better')
        """
        unit = {"share": ", %", "loss": ", nats"}.get(self.kind, "")
        return self.title + unit + ("" if self.rising else ", lower is better")

    def write(self, value: float) -> str:
        """Write an oriented value.

        Example:
            >>> METRICS["accuracy"].write(0.974), METRICS["perplexity"].write(-2.0)
            ('97.4%', '7.39')
        """
        natural = self.natural(value)
        digits = ".5g" if self.kind == "value" else ".3g"  # a loss of 3.2784 is not one of 3.2800
        return f"{natural:.1%}" if self.kind == "share" else f"{natural:{digits}}"

    def known(self, answers: Answers) -> bool:
        """Return whether the answers tell the metric: published ones tell what is right alone."""
        return not answers.only_right or self.rows is _accuracy or self != METRICS.get(self.name)

    def check(self, answers: Answers) -> None:
        """Refuse answers that the metric cannot be computed from."""
        lacking = (self.needs == "labels" and not answers.by_row) or (
            self.needs == "ngrams" and answers.ngrams is None
        )
        if lacking:
            what = "rows of one class each" if self.needs == "labels" else "translations"
            raise ConfigError(
                f"--metric {self.name} is for {what}; give another, such as accuracy."
            )


def _accuracy(answers: Answers) -> Values:
    return _ratio(answers.right, answers.asked)


def _minus_loss(answers: Answers) -> Values:
    return -_ratio(answers.loss, answers.asked)


def _ratio(above: Values, below: Values) -> Values:
    """Return the shares of rows in sum(above) / sum(below)."""
    value = above.sum() / below.sum()
    return value + (above - value * below) / below.mean()


def _balanced(answers: Answers) -> Values:
    right = (answers.predicted == answers.label).astype(np.float64)
    counts = np.bincount(answers.label)
    recall = np.bincount(answers.label, right) / np.maximum(counts, 1)
    present = counts > 0
    of_row = (right - recall[answers.label]) * len(answers) / counts[answers.label]
    return recall[present].mean() + of_row / present.sum()


def _macro_f1(answers: Answers) -> Values:
    label, predicted = answers.label, answers.predicted
    f1, both = f1_of_classes(answers)
    present = np.bincount(label, minlength=len(both)) > 0
    weight = np.where(both > 0, len(answers) / np.maximum(both, 1), 0.0) * present
    hit = 2.0 * (predicted == label) * weight[label]
    of_row = hit - f1[label] * weight[label] - f1[predicted] * weight[predicted]
    return f1[present].mean() + of_row / present.sum()


def f1_of_classes(answers: Answers) -> tuple[Values, Values]:
    """Return F1 of each class, and how often it is the label plus how often it is predicted."""
    classes = int(max(answers.label.max(), answers.predicted.max())) + 1
    hits = np.bincount(answers.label[answers.predicted == answers.label], minlength=classes)
    both = np.bincount(answers.label, minlength=classes).astype(np.float64)
    both += np.bincount(answers.predicted, minlength=classes)
    return 2.0 * hits / np.maximum(both, 1.0), both


ORDERS = 4  # of the n-grams of BLEU


def _bleu(answers: Answers) -> Values:
    """Return the shares of rows in corpus BLEU, a fraction: that of sacrebleu without smoothing.

    A corpus without a match of some order has BLEU 0, and no row has a share in it.
    """
    counts = answers.ngrams
    sums = counts.sum(axis=0)
    matches, totals = sums[:ORDERS], sums[ORDERS : 2 * ORDERS]
    length, reference = sums[-2:]
    if not matches.all():
        return np.zeros(len(answers))
    brevity = min(0.0, 1.0 - reference / length)
    bleu = math.exp(np.log(matches / totals).mean() + brevity)
    of_row = (counts[:, :ORDERS] / matches - counts[:, ORDERS : 2 * ORDERS] / totals).mean(axis=1)
    if brevity < 0.0:
        of_row -= (counts[:, -1] - counts[:, -2] * reference / length) / length
    return bleu + bleu * len(answers) * of_row


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "test accuracy", "share", _accuracy),
        Metric("balanced", "balanced test accuracy", "share", _balanced, "labels"),
        Metric("macro-f1", "macro F1 on test", "share", _macro_f1, "labels"),
        Metric("log-loss", "test loss", "loss", _minus_loss),
        Metric("perplexity", "test perplexity", "perplexity", _minus_loss),
        Metric("bleu", "test BLEU", "share", _bleu, "ngrams"),
    )
}


def metric_of(name: str) -> Metric:
    """Return a metric by its name; one of somebody's own loop is the mean of its rows."""
    return METRICS.get(name) or share_metric(name)


def share_metric(name: str) -> Metric:
    """Return a metric whose value is the mean of its rows, each a share from 0 to 1."""
    own = Metric(name, _title(name), "share", _accuracy)
    return METRICS[name] if name == "accuracy" else own


def _title(name: str) -> str:
    return name if "/" in name or name.startswith(("test", "eval", "val")) else f"test {name}"


def own_metric(name: str, better: str, *, relative: bool = False) -> Metric:
    """Return a metric of somebody's own loop that is not a share, such as a loss or an error.

    If `relative`, differences and the margin are in percent of the value, which is above 0.
    """
    check_known("direction", better, (HIGHER, LOWER))
    sign = 1.0 if better == HIGHER else -1.0

    def values(answers: Answers) -> Values:
        return sign * answers.right

    def ratios(answers: Answers) -> Values:
        mean = answers.right.mean()
        return sign * (math.log(mean) + (answers.right - mean) / mean)

    kind, rows = ("ratio", ratios) if relative else ("value", values)
    return Metric(name, _title(name), kind, rows, better=better)


def value_in(cell: Cell, metric: Metric) -> float:
    """Return the oriented value of a cell whose rows were not kept."""
    if metric.kind in ("value", "ratio"):
        return metric.oriented(cell.scores[metric.name])
    if metric.rows is _accuracy:
        return cell.test_accuracy
    if metric.kind != "share" and cell.test_loss is not None:
        return -cell.test_loss
    stored, scale = {"balanced": ("balanced_accuracy", 1.0), "bleu": ("bleu", 100.0)}.get(
        metric.name, (metric.name, 1.0)
    )
    if stored in cell.scores:
        return cell.scores[stored] / scale
    raise ConfigError(
        f"{metric.title} of {cell.mechanism} is not known: the answers of this comparison were not "
        "kept; compare again, or judge by accuracy."
    )


# What a report shows besides.


def confusion(answers: Answers, classes: int) -> NDArray[np.int64]:
    """Return how many rows of each class (down) were given each class (across), [C, C]."""
    flat = answers.label * classes + answers.predicted
    return np.bincount(flat, minlength=classes * classes).reshape(classes, classes)


def calibration_error(answers: Answers, bins: int = 15) -> float:
    """Return the expected calibration error (ECE): mean gap of confidence and accuracy.

    Rows are put in bins of equal width by confidence; the gaps are weighted by rows.

    Source: Guo et al. 2017, "On calibration of modern neural networks".
    """
    places = np.minimum((answers.confidence * bins).astype(np.int64), bins - 1)
    gap = np.bincount(places, answers.confidence - answers.right, minlength=bins)
    return float(np.abs(gap).sum() / len(answers))


MARGIN = 0.01  # of test accuracy, a fraction: what may be lost unless the user says otherwise
SMALL_POINTS = 0.1  # on the command line; a smaller number looks like a fraction
LARGE_FRACTION = 0.5  # in Python; a larger number looks like points
_MARGIN = re.compile(r"([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?) ?(%|points?|nats?)?")


@dataclass(frozen=True)
class Margin:
    """A margin before the metric is known.

    With a unit it means the same everywhere: "1 point" or "1%" of a share, "0.02 nats" of a loss,
    "2%" of the value of any other metric. Without one it is points (hundredths of a nat of
    log-loss) on the command line and a fraction in Python; other metrics have their own unit.
    """

    size: float  # the number
    unit: str = ""  # "%", "point", "nat" or ""
    typed: bool = False  # whether it comes from the command line

    @classmethod
    def of(cls, value: float | str, *, typed: bool = False) -> Margin:
        """Read a margin.

        Example:
            >>> Margin.of("2%"), Margin.of(0.01)
            (Margin(size=2.0, unit='%', typed=False), Margin(size=0.01, unit='', typed=False))
        """
        match = _MARGIN.fullmatch(str(value).strip())
        if match is None:
            name = "--margin " if typed else "margin="
            raise ConfigError(
                f"{name}{value} is not a size; use a number of at least 0, with a unit if wanted, "
                "such as 1, '0.5 points', 2% or '0.02 nats'."
            )
        return cls(float(match[1]), (match[2] or "").rstrip("s"), typed)

    def for_metric(self, name: str, kind: str) -> tuple[float, bool]:
        """Return the margin of a kind of metric, and whether it is a fraction of the value."""
        legal = {"share": ("%", "point"), "loss": ("nat",), "perplexity": ("%",), "ratio": ("%",)}
        if self.unit and self.unit not in legal.get(kind, ("%", "nat")):
            wanted = " or ".join(legal.get(kind, ("%", "nat")))
            raise ConfigError(f"margin of {name}: the unit is {self.unit}; use {wanted}.")
        if kind == "value":
            return (self.size / 100, True) if self.unit == "%" else (self.size, False)
        if not self.unit:
            self._ask(name, kind)
        scale = 1.0 if self.unit == "nat" or not (self.unit or self.typed) else 100.0
        return self.size / scale, False

    def _ask(self, name: str, kind: str) -> None:
        """Refuse a number that is probably meant in the unit of the other door."""
        size, unit = self.size, {"share": "points", "perplexity": "%"}.get(kind, "nats")
        small = self.typed and 0.0 < size < SMALL_POINTS
        if small or (not self.typed and LARGE_FRACTION <= size < 1.0 and kind == "share"):
            fraction, other = (size, size / 100) if kind == "loss" else (100 * size, size)
            raise ConfigError(
                f"margin {size:g} of {name}: use '{fraction:g} {unit}' if the fraction {size:g} is "
                f"meant, else '{other:g} {unit}'."
            )
