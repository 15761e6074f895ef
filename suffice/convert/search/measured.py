"""The plan's model held against the source as wholes: what was predicted, what is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from suffice.convert.search.budget import Limit
from suffice.convert.search.costs import parameters, state_bytes
from suffice.convert.search.decoding import NATIVE, TORCH, forgetting, read, stepper, time_models
from suffice.convert.search.found import Quantity
from suffice.convert.search.judge import Rows
from suffice.convert.search.library import Option
from suffice.convert.search.table import Table
from suffice.measure.statistics import summarise
from suffice.measure.timing import summarise_times
from suffice.memory import Dynamic
from suffice.models import LM

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
