"""What `suffice search` prints."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from suffice.convert.search import Found, Mix, Quantity
    from suffice.measure.statistics import Summary

LOOK = {"box": box.SIMPLE_HEAD, "show_edge": False, "pad_edge": False}
UNITS = {
    "state": ("kB", 1e-3, ",.1f"),
    "parameters": ("", 1.0, ",.0f"),
    "latency": ("us", 1e6, ",.1f"),
    "loss": ("nats", 1.0, ".4f"),
    "divergence": ("nats", 1.0, ".5f"),
}


def print_found(found: Found, out: Path, folder: Path, command: list[str]) -> None:
    """Print the plan, what was predicted and measured of it, and how others do.

    Args:
        found: what the search has found.
        out: the file of the plan.
        folder: of the work behind it.
        command: the words that make the plan's model.
    """
    console = Console()
    console.print(_layers(found))
    console.print()
    console.print(_quantities(found))
    console.print()
    told = [*sentences(found), f"plan: {out}; all that was found: {folder}"]
    told.append(f"make it by: {shlex.join(command)}")
    console.print("\n".join(told), markup=False, highlight=False, soft_wrap=True)


def sentences(found: Found) -> list[str]:
    """Return what the budget, the timing and the rivals say."""
    return [
        *filter(None, map(_budget, found.quantities)),
        _speed(found),
        _sum(found),
        *_rivals(found),
        *_time(found),
    ]


def _layers(found: Found) -> Table:
    table = Table("layer", "becomes", "divergence alone", "state kB", "parameters", **LOOK)
    for one in found.layers:
        table.add_row(
            one.layer.removesuffix(".attention"),
            one.words.replace(",", ", "),
            _interval(one.divergence),
            f"{one.state / 1e3:,.1f}",
            f"{one.parameters:,}",
        )
    return table


def _quantities(found: Found) -> Table:
    table = Table("", "source", "at most", "predicted", "measured", **LOOK)
    for one in found.quantities:
        unit, scale, form = UNITS[one.name]
        values = [one.source, one.bound, one.predicted, one.measured]
        cells = ["" if value is None else f"{value * scale:{form}}" for value in values]
        if one.low is not None and one.high is not None:
            cells[-1] += f" ({one.low * scale:{form}} to {one.high * scale:{form}})"
        table.add_row(f"{one.name} {unit}".strip(), *cells)
    return table


def _budget(one: Quantity) -> str:
    if one.bound is None:
        return ""
    share = f", {one.measured / one.source:.3g} of the source's" if one.source else ""
    told = {True: "is met", False: "IS NOT MET", None: "is not shown to be met: noise hides it"}
    return f"the bound of {one.name} {told[one.met]}{share}"


def _speed(found: Found) -> str:
    """Say faster or slower only where the interval says so."""
    one = found.quantity("latency")
    low, high = one.low or one.measured, one.high or one.measured
    word = "as fast as the source within the noise"
    if high < one.source:
        word = f"{one.source / one.measured:.2f}x as fast as the source"
    elif low > one.source:
        word = f"{one.measured / one.source:.2f}x slower than the source"
    ways = found.way if found.way == found.source_way else f"{found.source_way}, then {found.way}"
    held = " -> ".join(f"{size / 1e3:,.1f}" for size in found.held)
    return (
        f"a step behind {found.length:,} tokens is {word} (steps: {ways}); states held with room "
        f"to grow {held} kB"
    )


def _sum(found: Found) -> str:
    if found.additive is None:
        return "every layer stays as it is"
    if found.additive:
        return "the layers' divergences add up to the whole's within the noise"
    moved = "one of them is the plan" if found.moved else "none was better"
    return (
        f"the layers' divergences do not add up to the whole's, so {found.weighed} choices near it "
        f"were measured; {moved}"
    )


def _rivals(found: Found) -> list[str]:
    told = [f"as wholes, on text that nothing was chosen by: the plan {_mix(found.plan)}"]
    best = found.uniform
    if best is None:
        told.append("no one option for all layers meets the budget")
    else:
        told.append(
            f"best of {len(found.of('uniform'))} uniform choices: {best.words[0]} {_mix(best)}"
        )
        told.append(_ahead(found))
    random = sorted(found.of("random"), key=lambda one: one.divergence.mean)
    if random:
        told.append(
            f"{len(random)} random mixes: the best {_mix(random[0])}, the median "
            f"{_mix(random[len(random) // 2])}"
        )
    return told


def _ahead(found: Found) -> str:
    """Say which of both is nearer only where the interval says so."""
    gain, best = found.ahead, found.uniform
    if found.words == best.words:
        return "the plan is that choice"
    word = "not told apart from"
    if gain.high is not None and gain.high < 0:
        word = "nearer to the source than"
    elif gain.low is not None and gain.low > 0:
        word = "farther from the source than"
    return f"the plan is {word} it: divergence {_interval(gain, '+')} of difference, row by row"


def _mix(one: Mix) -> str:
    return (
        f"{_interval(one.divergence)}, loss {one.loss.mean:+.4f}, state {one.state / 1e3:,.1f} kB"
    )


def _interval(one: Summary, sign: str = "") -> str:
    form = f"{sign}.5f"
    ends = "" if one.low is None else f" ({one.low:{form}} to {one.high:{form}})"
    return f"{one.mean:{form}}{ends}"


def _time(found: Found) -> list[str]:
    if found.scored == found.pairs:
        return []
    return [
        f"{found.scored} of {found.pairs} pairs of a layer and an option were scored in time; "
        "--resume with more --minutes scores the rest"
    ]
