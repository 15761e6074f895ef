"""Results of probes: accuracy by question, negative controls, the figure of recall over state."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from suffice.measure.report.canvas import (
    FAINT,
    blank,
    legend,
    line_styles,
    panels_width,
    png,
    style,
)
from suffice.measure.statistics import Summary
from suffice.utils.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from suffice.measure.report.canvas import LineStyle


SOLVED_TEST = 0.98  # of the test answers, which nothing was chosen by
TOLERANCE = 0.05  # above chance: what a control that fails may still get by luck

FAILED = "control failed as it must"
ALARM = "ALARM: control succeeded"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The accuracy on one kind of question; a control is a question that nothing can answer."""

    accuracy: Summary  # share of right answers, over seeds or rows
    chance: float  # accuracy of a guess that has not found the answer
    control: str = ""  # reason why it must fail; "" where it may succeed

    @property
    def above(self) -> bool:
        """Whether it is above chance by more than luck gives."""
        return self.accuracy.mean > self.chance + TOLERANCE

    @property
    def verdict(self) -> str:
        """A verdict in a few words."""
        if self.control:
            return ALARM if self.above else FAILED
        return "recalled" if self.above else "at chance"


@dataclass(frozen=True, kw_only=True)
class Finding(Outcome):
    """The accuracy of one mechanism on the test questions of one view, over seeds."""

    task: str  # name of the task
    mechanism: str  # name of the mechanism
    view: str  # difficulty of the questions; "" for all of the task's
    # steps after which the validation answers were solved, by seed; None = never
    solved: tuple[int | None, ...]
    steps: int  # maximum steps of a training
    state: float  # bytes that a layer keeps of a row
    pairs: int | None = None  # pairs of an associative recall; None for other tasks

    @property
    def verdict(self) -> str:
        """A verdict in a few words."""
        if self.control or not self.above:
            return super().verdict
        return "solved" if self.accuracy.mean >= SOLVED_TEST else "above chance"

    @property
    def name(self) -> str:
        """The task, the mechanism and the view."""
        return ", ".join(filter(None, (self.task, self.mechanism, self.view)))

    @property
    def solved_at(self) -> str:
        """The median step at which it was solved, and in how many seeds it was."""
        steps = [step for step in self.solved if step is not None]
        if not steps:
            return f"not in {self.steps:,}"
        share = "" if len(steps) == len(self.solved) else f" ({len(steps)} of {len(self.solved)})"
        return f"{median(steps):,.0f}{share}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """The results of a probe, with negative controls."""

    kind: str  # "mechanisms" that were trained on every task, or a "checkpoint"
    # facts about the probe: seeds and whether it was quick, or rows and reach
    facts: Mapping[str, Any]
    # accuracy of each mechanism on each view; none of a checkpoint
    findings: tuple[Finding, ...] = ()
    recalls: tuple[Any, ...] = ()  # accuracy of a checkpoint by question
    ablations: tuple[Any, ...] = ()  # loss of a checkpoint without each branch
    seconds: float = 0.0  # seconds since the last start

    @classmethod
    def of(cls, kind: str, clock: float, facts: dict[str, Any], **records: Iterable[Any]) -> Report:
        """Return the report of a probe that began at a time of `time.monotonic`."""
        seconds = round(time.monotonic() - clock, 1)
        lists = {name: tuple(values) for name, values in records.items()}
        return cls(kind=kind, facts=facts, seconds=seconds, **lists)

    @property
    def controls(self) -> tuple[Outcome, ...]:
        """The outcomes that must be failures."""
        return tuple(one for one in (*self.findings, *self.recalls) if one.control)

    @property
    def alarms(self) -> tuple[Outcome, ...]:
        """The controls that succeeded: then no other outcome can be trusted."""
        return tuple(outcome for outcome in self.controls if outcome.above)

    def to_json(self) -> dict[str, Any]:
        """Return plain data: every field, and of every record its verdict."""
        names = ("findings",) if self.kind == "mechanisms" else ("recalls", "ablations")
        lists = {
            name: [{**asdict(record), "verdict": record.verdict} for record in getattr(self, name)]
            for name in names
        }
        head = {"kind": self.kind, **self.facts, "seconds": self.seconds}
        return {**head, "alarms": len(self.alarms), **lists}


FILE = "recall.png"


def recall_figure(report: Report) -> Figure:
    """Draw recall over state, one panel per number of pairs; the line across is chance.

    A mechanism's points are its widths, joined; the bars are 95% intervals over seeds.
    """
    findings = [finding for finding in report.findings if finding.pairs is not None]
    styles = line_styles(finding.mechanism for finding in findings)
    pairs = sorted({finding.pairs for finding in findings if finding.pairs is not None})
    with style():
        figure, axes = blank(
            1, len(pairs), width=panels_width(len(pairs)), height=3.6, sharey="all"
        )
        for panel, number in zip(axes[0], pairs, strict=True):
            _panel(panel, [finding for finding in findings if finding.pairs == number], styles)
            panel.set_title(f"{number} pairs")
            panel.set_xlabel("KV cache or state of a layer, bytes")
        axes[0][0].set_ylabel("recall, % of test answers")
        legend(figure, styles)
    return figure


def write_figure(report: Report, folder: Path) -> Path | None:
    """Write the figure as PNG and return its file; None where nothing was recalled.

    Raises:
        DataError: if it cannot be written.
    """
    if all(one.pairs is None for one in report.findings):
        return None
    write_atomic(folder / FILE, png(recall_figure(report)))
    return folder / FILE


def _panel(axes: Axes, findings: Sequence[Finding], styles: dict[str, LineStyle]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    axes.axhline(100 * findings[0].chance, color=FAINT[0], linewidth=1.0, linestyle=":", zorder=0.6)
    for mechanism, line_style in styles.items():
        points = sorted(
            (finding for finding in findings if finding.mechanism == mechanism),
            key=lambda finding: finding.state,
        )
        ends = [_ends(finding) for finding in points]
        axes.errorbar(
            [finding.state for finding in points],
            [mean for _, mean, _ in ends],
            yerr=[[mean - low for low, mean, _ in ends], [high - mean for _, mean, high in ends]],
            color=line_style.colour,
            marker=line_style.marker,
            linestyle=line_style.dash,
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=4.0))  # room for the numbers
    # plain numbers: the report's style writes no formulas
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_ylim(-3, 103)


def _ends(finding: Finding) -> tuple[float, float, float]:
    accuracy = finding.accuracy
    low, high = (accuracy.mean if end is None else end for end in (accuracy.low, accuracy.high))
    return 100 * max(low, 0.0), 100 * accuracy.mean, 100 * min(high, 1.0)
