"""The result of a search: the plan, predicted and measured, and its rival combinations."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suffice.convert.certificate import Certificate
from suffice.convert.target import plan_to_json
from suffice.utils.canvas import (
    COLOURS,
    FAINT,
    MARKERS,
    blank,
    panels_width,
    plain_powers,
    png,
    style,
)
from suffice.utils.files import write_atomic, write_json
from suffice.utils.machine import machine_facts, software_versions
from suffice.utils.statistics import Summary, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class OptionScore:
    """One layer with one option, all other layers unchanged."""

    layer: str  # the name of its module
    words: str  # the option
    divergence: Summary  # divergence from the original model, nats per token, over rows
    state: int  # bytes that the layer keeps of a text
    parameters: int  # parameters of the layer
    # seconds that it adds to a decoding step, by backend; None where a backend does not support it
    latency: dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Combination:
    """Options for all layers, measured as a whole on text that nothing was chosen by."""

    # "plan", "uniform", "greedy" (one option for the layers that lose least by it) or "random"
    kind: str
    words: tuple[str, ...]  # the option of each layer
    predicted: float  # the sum of the layers' divergences
    divergence: Summary  # divergence of the whole model, over rows
    loss: Summary  # change of the loss, over rows
    state: float  # bytes that attention keeps of a text
    rows: tuple[float, ...]  # the divergence of each row


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A quantity of the original model and of the plan."""

    name: str  # name of the quantity in a budget
    source: float  # value of the original
    bound: float | None  # bound from the budget; None: no bound
    predicted: float  # value of the plan, from its layers alone
    measured: float  # value of the plan's model as a whole
    # lower end of the 95% interval of the measured one; None where it is exact or unknown
    low: float | None = None
    high: float | None = None  # upper end

    @property
    def met(self) -> bool | None:
        """Whether the measured one meets the bound; None: there is none, or noise hides it."""
        if self.bound is None:
            return None
        worst, best = self.measured if self.high is None else self.high, self.measured
        best = best if self.low is None else self.low
        if worst <= self.bound * (1 + 1e-9):
            return True
        return False if best > self.bound else None


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The result of `search`."""

    budget: str  # the bounds in words
    words: tuple[str, ...]  # the plan: the target of each layer, in order
    layers: tuple[OptionScore, ...]  # the scores of the chosen options
    length: int  # tokens of the text behind which costs count
    way: str  # decoding backend of the plan's model: "native" or "torch"
    source_way: str  # decoding backend of the original
    quantities: tuple[Quantity, ...]  # state, latency, parameters, loss, divergence
    mixes: tuple[Combination, ...]  # the plan first; all measured on the same rows
    # whether the sum of the layers' divergences is that of the whole, up to noise, on the rows that
    # it was chosen by; None where the plan keeps every layer
    additive: bool | None
    weighed: int  # neighbours of the first plan that were measured because it was not
    moved: bool  # whether one of them became the plan
    scored: int  # pairs of a layer and an option that were scored
    pairs: int  # all such pairs
    held: tuple[int, int]  # bytes allocated for the states of the original and the plan's model
    certificate: Certificate  # certificate of the plan's conversion
    scores: tuple[OptionScore, ...]  # scores of all options

    @property
    def plan(self) -> Combination:
        """The plan among the combinations."""
        return self.mixes[0]

    @property
    def uniform(self) -> Combination | None:
        """The best uniform choice that meets the budget; None if none does."""
        return min(self.of("uniform"), key=lambda one: one.divergence.mean, default=None)

    @property
    def ahead(self) -> Summary | None:
        """The plan's divergence less that of the best uniform choice, row by row."""
        best = self.uniform
        if best is None:
            return None
        return summarise([a - b for a, b in zip(self.plan.rows, best.rows, strict=True)])

    def of(self, kind: str) -> list[Combination]:
        """Return the combinations of a kind."""
        return [one for one in self.mixes if one.kind == kind]

    def quantity(self, name: str) -> Quantity:
        """Return one of the quantities."""
        return next(one for one in self.quantities if one.name == name)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {**asdict(self), "certificate": self.certificate.to_json()}

    def write(self, out: Path) -> None:
        """Write the plan, and all results and their figure into the folder next to it."""
        results = self.to_json()
        facts = {key: results[key] for key in ("budget", "length", "quantities")}
        results["machine"] = {**machine_facts(), **software_versions()}
        write_json(folder_of(out) / "results.json", results)
        write_atomic(folder_of(out) / "figure.png", png(draw(self)))
        write_json(out, plan_to_json(self.words, **facts))


def folder_of(plan: Path) -> Path:
    """Return the folder with the results behind a plan.

    Example:
        >>> folder_of(Path("runs/plan.json")).as_posix()
        'runs/plan.search'
    """
    return plan.with_suffix(".search")


KINDS = {
    "random": "random mixes",
    "uniform": "one option for all",
    "greedy": "layers by loss",
    "plan": "the plan",
}


def draw(result: SearchResult) -> Figure:
    """Draw all combinations that were measured; bars are 95% intervals over rows."""
    with style():
        figure, axes = blank(1, 2, width=panels_width(2), height=3.8)
        predicted, state = axes[0]
        _points(predicted, result, lambda one: one.predicted)
        predicted.set_xlabel("sum of the layers' divergences, nats per token")
        predicted.set_ylabel("divergence of the whole, nats per token")
        _points(state, result, lambda one: one.state / 1e3)
        state.set_xlabel(f"state of {result.length:,} tokens, kB")
        ends = [x for one in result.mixes if (x := one.predicted) > 0 and one.divergence.mean > 0]
        if ends:
            predicted.set_xscale("log")
            predicted.plot(
                [min(ends), max(ends)], [min(ends), max(ends)], color=FAINT[0], linewidth=1.0
            )
            plain_powers(predicted.xaxis)
            for one in axes[0]:
                one.set_yscale("log")
                plain_powers(one.yaxis)
        state.legend(loc="best")
    return figure


def _points(axes: Axes, result: SearchResult, place: object) -> None:
    for number, (kind, label) in enumerate(KINDS.items()):
        combinations: list[Combination] = result.of(kind)
        for index, one in enumerate(combinations):
            far = one.divergence
            low, high = (far.mean if end is None else end for end in (far.low, far.high))
            axes.errorbar(
                place(one),
                far.mean,
                yerr=[[far.mean - low], [high - far.mean]],
                color=COLOURS[number][0],
                marker=MARKERS[number],
                linestyle="none",
                label=None if index else label,
            )
