"""What probes found: one finding for each mechanism and question, and whether controls failed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from statistics import median
from typing import Any

from suffice.measure.statistics import Summary

SOLVED_TEST = 0.98  # of the test answers, which nothing was chosen by
TOLERANCE = 0.05  # above chance: what a control that fails may still get by luck

FAILED = "control failed as it must"
ALARM = "ALARM: control succeeded"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one mechanism answered to the questions of one view, over seeds.

    Args:
        task: name of the task.
        mechanism: name of the mechanism.
        view: what sets the questions apart; "" for all of the task's.
        accuracy: of the test answers over seeds, fractions.
        chance: accuracy of a guess that has not found the answer.
        solved: steps after which the validation answers were solved, by seed; None = not.
        steps: that were trained at most.
        state: bytes a layer keeps of a row.
        pairs: of an associative recall; None for other tasks.
        control: why it must fail; "" where it may succeed.
    """

    task: str
    mechanism: str
    view: str
    accuracy: Summary
    chance: float
    solved: tuple[int | None, ...]
    steps: int
    state: float
    pairs: int | None = None
    control: str = ""

    @property
    def above(self) -> bool:
        """Whether it is above chance by more than luck gives."""
        return self.accuracy.mean > self.chance + TOLERANCE

    @property
    def verdict(self) -> str:
        """What is to be said of it in a few words."""
        if self.control:
            return ALARM if self.above else FAILED
        if not self.above:
            return "at chance"
        return "solved" if self.accuracy.mean >= SOLVED_TEST else "above chance"

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
    """What a whole run of probes found.

    Args:
        findings: one by one.
        seeds: trainings behind each.
        quick: whether it was the short suite.
        seconds: that it took, since its last start.
    """

    findings: tuple[Finding, ...]
    seeds: int
    quick: bool
    seconds: float

    @property
    def controls(self) -> tuple[Finding, ...]:
        """The findings that must be failures."""
        return tuple(one for one in self.findings if one.control)

    @property
    def alarms(self) -> tuple[Finding, ...]:
        """The controls that succeeded: then no other finding can be trusted."""
        return tuple(one for one in self.controls if one.above)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        found = [{**dataclasses.asdict(one), "verdict": one.verdict} for one in self.findings]
        return {
            "kind": "mechanisms",
            "quick": self.quick,
            "seeds": self.seeds,
            "seconds": self.seconds,
            "alarms": len(self.alarms),
            "findings": found,
        }
