"""Measures combinations as whole models: the plan, its neighbours, uniform and random ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from suffice.convert.search.options import Option, parameters, state_bytes
from suffice.convert.search.problem import Choice, CostTable, Limit, Program
from suffice.convert.search.result import Combination, Quantity
from suffice.convert.search.scoring import CandidateFits, Evaluator, RowScores
from suffice.convert.search.timing import TORCH, prefill, state_for, stepper, time_calls
from suffice.measure.statistics import Summary, summarise
from suffice.measure.timing import summarise_times
from suffice.models import LM

NEIGHBOURS, UNIFORM, RANDOM = 24, 12, 16  # combinations of a kind that are measured at most
MINIMUM = 4  # of those that a plan is compared with, however late it is
ROUNDS = 31


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A choice, after it was measured as a whole."""

    choice: Choice
    additive: bool | None  # whether its layers' divergences add up; None = nothing changes
    weighed: int = 0  # neighbours that were measured
    moved: bool = False  # whether one of them was chosen instead


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Measures choices of one program."""

    table: CostTable  # costs and scores of the options
    program: Program  # of one backend
    options: Sequence[Sequence[Option]]  # that it chooses from
    limits: Sequence[Limit]  # the budget
    backend: str  # of its models
    fits: CandidateFits  # the layers
    late: Callable[[], bool]  # whether time is up
    step: Callable[[str, int, int], None]  # called with the stage, and how much of it is done

    def chosen(self, choice: Choice) -> list[Option]:
        """Return the options of a choice."""
        return [of_layer[one] for of_layer, one in zip(self.options, choice, strict=True)]

    def measure(self, evaluator: Evaluator, choice: Choice) -> RowScores:
        """Measure a choice as a whole."""
        layers = {one.layer: self.fits.layer(one) for one in self.chosen(choice)}
        return evaluator.with_layers({n: one for n, one in layers.items() if one is not None})

    def cost(self, name: str, choice: Choice) -> float:
        """Return what the options of a choice add to a quantity."""
        return sum(self.table.cost(name, one, self.backend) for one in self.chosen(choice))

    def plan(self, evaluator: Evaluator, choice: Choice) -> Plan:
        """Measure a choice, and its neighbours if its divergence is not the sum of its layers'."""
        options = self.chosen(choice)
        if all(one.change.unchanged for one in options):
            return Plan(choice=choice, additive=None)
        whole = self.measure(evaluator, choice)
        parts = zip(*(self.table.rows[one.key].divergence for one in options), strict=True)
        excess = summarise(
            [far - sum(row) for far, row in zip(whole.divergence, parts, strict=True)]
        )
        if excess.low is not None and excess.low <= 0.0 <= excess.high:
            return Plan(choice=choice, additive=True)
        measured = {choice: whole}
        near = self.program.neighbours(choice, NEIGHBOURS)
        for done, other in enumerate(near, start=1):
            if self.late():
                break
            measured[other] = self.measure(evaluator, other)
            self.step("weighing", done, len(near))
        best = min(measured, key=lambda one: (*self._rank(one, measured[one]), one != choice))
        weighed = len(measured) - 1
        return Plan(choice=best, additive=False, weighed=weighed, moved=best != choice)

    def _rank(self, choice: Choice, rows: RowScores) -> tuple[float, float]:
        """Return by how much a choice exceeds bounds of quality, and what is minimised."""
        measured = {"divergence": rows.divergence, "loss": rows.loss}
        excess = 0.0
        for limit in self.limits:
            if limit.name in measured:
                bound = limit.of(self.table.source(limit.name))
                excess += max(summarise(measured[limit.name]).mean / bound - 1.0, 0.0)
        if self.table.minimises_state(self.limits):
            return excess, self.program.score(choice)
        return excess, summarise(rows.divergence).mean

    def combination(
        self, kind: str, choice: Choice, rows: RowScores, before: RowScores
    ) -> Combination:
        """Return what was measured of a choice."""
        return Combination(
            kind=kind,
            words=tuple(one.words for one in self.chosen(choice)),
            predicted=self.cost("divergence", choice),
            divergence=summarise(rows.divergence),
            loss=_change_of_loss(before, rows),
            state=self.cost("state", choice),
            rows=rows.divergence,
        )

    def rivals(self, evaluator: Evaluator, before: RowScores, seed: int) -> list[Combination]:
        """Measure uniform and random choices."""
        draws = Random(seed)
        drawn = (self.program.random(draws) for _ in range(RANDOM))
        choices = [("uniform", choice) for choice in self._uniform()]
        choices += [("random", one) for one in dict.fromkeys(drawn) if one is not None]
        rivals: list[Combination] = []
        for done, (kind, choice) in enumerate(choices, start=1):
            few = sum(one.kind == kind for one in rivals) < MINIMUM
            if few or not self.late():
                rows = self.measure(evaluator, choice)
                rivals.append(self.combination(kind, choice, rows, before))
            self.step("comparing", done, len(choices))
        return rivals

    def _uniform(self) -> list[Choice]:
        """Return the choices of one option for all layers that meet the budget, best sums first."""
        places = [{one.words: at for at, one in enumerate(row)} for row in self.options]
        common = [words for words in places[0] if all(words in row for row in places)]
        choices = [tuple(row[words] for row in places) for words in common]
        legal = filter(self.program.meets, choices)
        return sorted(legal, key=lambda choice: self.cost("divergence", choice))[:UNIFORM]

    def quality(
        self, choice: Choice, rows: RowScores, before: RowScores
    ) -> tuple[Quantity, Quantity]:
        """Return loss and divergence of a plan, predicted and measured on rows not chosen by."""
        divergence, source = summarise(rows.divergence), summarise(before.loss).mean
        change = _change_of_loss(before, rows)
        ends = (None if end is None else source + end for end in (change.low, change.high))
        low, high = ends
        return (
            Quantity(
                name="loss",
                source=source,
                bound=self._bound("loss", source),
                predicted=source + self.cost("loss", choice),
                measured=summarise(rows.loss).mean,
                low=low,
                high=high,
            ),
            Quantity(
                name="divergence",
                source=0.0,
                bound=self._bound("divergence", 0.0),
                predicted=self.cost("divergence", choice),
                measured=divergence.mean,
                low=divergence.low,
                high=divergence.high,
            ),
        )

    def exact_costs(self, options: Sequence[Option], backend: str, lm: LM) -> list[Quantity]:
        """Return state and parameters of a plan, predicted and counted in its model."""
        counted = {
            "state": sum(
                state_bytes(block.attention.spec, self.table.length, rolls=backend == TORCH)
                for block in lm.blocks
            ),
            "parameters": sum(one.numel() for one in lm.parameters()),
        }
        table = self.table
        return [
            Quantity(
                name=name,
                source=table.source(name),
                bound=self._bound(name, table.source(name)),
                predicted=table.base(name, backend)
                + sum(table.cost(name, one, backend) for one in options),
                measured=float(measured),
            )
            for name, measured in counted.items()
        ]

    def latency(
        self, options: Sequence[Option], backends: tuple[str, str], models: tuple[LM, LM]
    ) -> Quantity:
        """Return the seconds of a step of the original and of the plan, in the same rounds."""
        table, names = self.table, ("source", "plan")
        calls = {
            name: stepper(lm, table.length, backend)
            for name, lm, backend in zip(names, models, backends, strict=True)
        }
        samples = time_calls(calls, models[0].device, ROUNDS)
        source = summarise_times(samples["source"]).median
        ratio = summarise(
            [math.log(b / a) for a, b in zip(*(samples[n] for n in names), strict=True)]
        )
        added = sum(table.latency[backends[1]][one.key] for one in options)
        predicted = (table.steps[backends[1]] + added) / table.steps[backends[0]]
        low, high = (
            None if end is None else source * math.exp(end) for end in (ratio.low, ratio.high)
        )
        return Quantity(
            name="latency",
            source=source,
            bound=self._bound("latency", source),
            predicted=source * max(predicted, 0.0),
            measured=source * math.exp(ratio.mean),
            low=low,
            high=high,
        )

    def _bound(self, name: str, source: float) -> float | None:
        return next((limit.of(source) for limit in self.limits if limit.name == name), None)


def _change_of_loss(before: RowScores, after: RowScores) -> Summary:
    return summarise([b - a for a, b in zip(before.loss, after.loss, strict=True)])


def allocated_bytes(lm: LM, length: int, backend: str) -> int:
    """Return the bytes that the state of a text takes, room to grow included."""
    state = state_for(lm, backend)
    prefill(lm, state, length)
    return state.nbytes


def other_parameters(lm: LM) -> int:
    """Return the number of parameters of a model outside its attention layers."""
    total = sum(one.numel() for one in lm.parameters())
    return total - sum(parameters(block.attention.spec) for block in lm.blocks)
