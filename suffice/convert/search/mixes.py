"""Whole choices measured: the plan, those near it, one option for all layers, and drawn ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from suffice.convert.search.options import Option, parameters, state_bytes
from suffice.convert.search.problem import Limit, Picks, Problem, Table
from suffice.convert.search.result import Mix, Quantity
from suffice.convert.search.scoring import (
    NATIVE,
    TORCH,
    Fits,
    Judge,
    Rows,
    forgetting,
    read,
    stepper,
    time_models,
)
from suffice.measure.statistics import Summary, summarise
from suffice.measure.timing import summarise_times
from suffice.memory import Dynamic
from suffice.models import LM

NEAR, UNIFORM, RANDOM = 24, 12, 16  # choices of a kind that are measured at most
FEWEST = 4  # of those that a plan is compared with, however late it is


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The choice of a program, and what came of measuring it as a whole.

    Args:
        picks: of each layer.
        additive: whether the sum of its parts lies within the noise of the whole; None where it
            changes nothing.
        weighed: others that were measured.
        moved: whether one of them is what was chosen.
    """

    picks: Picks
    additive: bool | None
    weighed: int = 0
    moved: bool = False


@dataclass(frozen=True, kw_only=True)
class Mixer:
    """Measures choices of one program.

    Args:
        table: what is known of the options.
        problem: the program.
        options: it chooses among.
        limits: the budget.
        way: how its models step.
        fits: the layers.
        late: whether time is up.
        step: told what is done, and how much of it.
    """

    table: Table
    problem: Problem
    options: Sequence[Sequence[Option]]
    limits: Sequence[Limit]
    way: str
    fits: Fits
    late: Callable[[], bool]
    step: Callable[[str, int, int], None]

    def picked(self, picks: Picks) -> list[Option]:
        """Return the options of a choice."""
        return [of_layer[one] for of_layer, one in zip(self.options, picks, strict=True)]

    def rows(self, judge: Judge, picks: Picks) -> Rows:
        """Measure a choice."""
        found = ((one.layer, self.fits.layer(one)) for one in self.picked(picks))
        return judge.rows({name: layer for name, layer in found if layer is not None})

    def predicted(self, picks: Picks) -> float:
        """Return the sum of the divergences of a choice's layers."""
        return sum(self.table.cost("divergence", one, self.way) for one in self.picked(picks))

    def weigh(self, judge: Judge, picks: Picks) -> Chosen:
        """Measure a choice, and those near it where its parts do not add up to it.

        Args:
            judge: the rows that single layers were scored on.
            picks: what the program chose.
        """
        if all(one.kept for one in self.picked(picks)):
            return Chosen(picks=picks, additive=None)
        whole = self.rows(judge, picks)
        parts = [self.table.rows[one.key].divergence for one in self.picked(picks)]
        misses = [
            far - sum(row)
            for far, row in zip(whole.divergence, zip(*parts, strict=True), strict=True)
        ]
        found = summarise(misses)
        if found.low is not None and found.low <= 0.0 <= found.high:
            return Chosen(picks=picks, additive=True)
        tried = {picks: whole}
        near = self.problem.neighbours(picks, NEAR)
        for done, other in enumerate(near, start=1):
            if self.late():
                break
            tried[other] = self.rows(judge, other)
            self.step("weighing", done, len(near))
        best = min(tried, key=lambda one: (*self._worth(one, tried[one]), one != picks))
        return Chosen(picks=best, additive=False, weighed=len(tried) - 1, moved=best != picks)

    def _worth(self, picks: Picks, rows: Rows) -> tuple[float, float]:
        """Return by how much a choice misses bounds of quality, and what is to be least of it."""
        measured = {"divergence": rows.divergence, "loss": rows.loss}
        beyond = 0.0
        for limit in self.limits:
            if limit.name in measured:
                bound = limit.of(self.table.source(limit.name))
                beyond += max(summarise(measured[limit.name]).mean / bound - 1.0, 0.0)
        if self.table.aims_at_state(self.limits):
            return beyond, self.problem.score(picks)
        return beyond, summarise(rows.divergence).mean

    def mix(self, kind: str, picks: Picks, rows: Rows, before: Rows) -> Mix:
        """Return what was measured of a choice."""
        return Mix(
            kind=kind,
            words=tuple(one.words for one in self.picked(picks)),
            predicted=self.predicted(picks),
            divergence=summarise(rows.divergence),
            loss=changed(before, rows),
            state=sum(self.table.cost("state", one, self.way) for one in self.picked(picks)),
            rows=rows.divergence,
        )

    def uniforms(self) -> list[Picks]:
        """Return the choices of one option for all layers that meet the budget, best sums first."""
        places = [{one.words: at for at, one in enumerate(row)} for row in self.options]
        common = [words for words in places[0] if all(words in row for row in places)]
        found = [tuple(row[words] for row in places) for words in common]
        return sorted(filter(self.problem.meets, found), key=self.predicted)[:UNIFORM]

    def randoms(self, seed: int) -> list[Picks]:
        """Return drawn choices that meet the budget."""
        draws = Random(seed)
        found = (self.problem.random(draws) for _ in range(RANDOM))
        return list(dict.fromkeys(one for one in found if one is not None))

    def rivals(self, judge: Judge, before: Rows, seed: int) -> list[Mix]:
        """Measure uniform and drawn choices.

        Args:
            judge: the rows that nothing was chosen by.
            before: what the source gives there.
            seed: of the draws.
        """
        asked = [("uniform", one) for one in self.uniforms()]
        asked += [("random", one) for one in self.randoms(seed)]
        found: list[Mix] = []
        for done, (kind, picks) in enumerate(asked, start=1):
            few = sum(one.kind == kind for one in found) < FEWEST
            if few or not self.late():
                found.append(self.mix(kind, picks, self.rows(judge, picks), before))
            self.step("comparing", done, len(asked))
        return found


def changed(before: Rows, after: Rows) -> Summary:
    """Return the change of the loss, paired by row."""
    return summarise([b - a for a, b in zip(before.loss, after.loss, strict=True)])


ROUNDS = 31


def quantities(
    table: Table,
    limits: Sequence[Limit],
    picked: Sequence[Option],
    way: str,
    rows: Rows,
    before: Rows,
) -> list[Quantity]:
    """Return loss and divergence as predicted and as measured, on rows nothing was chosen by.

    Args:
        table: what is known of the options.
        limits: the budget.
        picked: the plan.
        way: how its model steps.
        rows: of the plan's model.
        before: of the source, on the same rows.
    """
    far, loss = summarise(rows.divergence), summarise(rows.loss)
    was = summarise(before.loss).mean
    change = summarise([b - a for a, b in zip(before.loss, rows.loss, strict=True)])
    ends = [None, None] if change.low is None else [was + change.low, was + change.high]
    predicted = {name: sum(table.cost(name, one, way) for one in picked) for name in QUALITY}
    return [
        Quantity(
            name="loss",
            source=was,
            bound=_bound(limits, "loss", was),
            predicted=was + predicted["loss"],
            measured=loss.mean,
            low=ends[0],
            high=ends[1],
        ),
        Quantity(
            name="divergence",
            source=0.0,
            bound=_bound(limits, "divergence", 0.0),
            predicted=predicted["divergence"],
            measured=far.mean,
            low=far.low,
            high=far.high,
        ),
    ]


QUALITY = ("loss", "divergence")


def costs(
    table: Table, limits: Sequence[Limit], picked: Sequence[Option], way: str, lm: LM
) -> list[Quantity]:
    """Return state and parameters, which are exact, as predicted and as counted in the model.

    Args:
        table: what is known of the options.
        limits: the budget.
        picked: the plan.
        way: how its model steps.
        lm: the plan's.
    """
    counted = {
        "state": sum(
            state_bytes(block.attention.spec, table.length, rolls=way == TORCH)
            for block in lm.blocks
        ),
        "parameters": sum(one.numel() for one in lm.parameters()),
    }
    found = []
    for name, measured in counted.items():
        source = table.source(name)
        predicted = table.base(name, way) + sum(table.cost(name, one, way) for one in picked)
        found.append(
            Quantity(
                name=name,
                source=source,
                bound=_bound(limits, name, source),
                predicted=predicted,
                measured=float(measured),
            )
        )
    return found


def latency(
    table: Table,
    limits: Sequence[Limit],
    picked: Sequence[Option],
    ways: tuple[str, str],
    models: tuple[LM, LM],
) -> Quantity:
    """Return the seconds of a step, of the source and of the plan's model in the same rounds.

    Args:
        table: what is known of the options.
        limits: the budget.
        picked: the plan.
        ways: how the source steps and how the plan's model does.
        models: the source and the plan's.
    """
    names = ("source", "plan")
    calls = {
        name: stepper(lm, table.length, way)
        for name, lm, way in zip(names, models, ways, strict=True)
    }
    samples = time_models(calls, models[0].device, ROUNDS)
    source = summarise_times(samples["source"]).median
    ratios = [math.log(b / a) for a, b in zip(*(samples[name] for name in names), strict=True)]
    found = summarise(ratios)
    added = sum(table.latency[ways[1]][one.key] for one in picked)
    predicted = (table.steps[ways[1]] + added) / table.steps[ways[0]]
    low, high = (None if end is None else source * math.exp(end) for end in (found.low, found.high))
    return Quantity(
        name="latency",
        source=source,
        bound=_bound(limits, "latency", source),
        predicted=source * max(predicted, 0.0),
        measured=source * math.exp(found.mean),
        low=low,
        high=high,
    )


def held(lm: LM, length: int, way: str) -> int:
    """Return the bytes that the state of a text takes, room to grow included."""
    state = lm.state(Dynamic()) if way == NATIVE else forgetting(lm)
    read(lm, state, length)
    return state.nbytes


def parameters_beside(lm: LM) -> int:
    """Return the parameters of a model beside its attention layers."""
    whole = sum(one.numel() for one in lm.parameters())
    return whole - sum(parameters(block.attention.spec) for block in lm.blocks)


def _bound(limits: Sequence[Limit], name: str, source: float) -> float | None:
    return next((limit.of(source) for limit in limits if limit.name == name), None)
