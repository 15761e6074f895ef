"""What `suffice advise` prints."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from suffice.cli.prose import write

if TYPE_CHECKING:
    from suffice.advise import Advice, Crossover, Place
    from suffice.advise.recipes import AdviceRecipe

SHOWN = 3  # of those that are ruled out, not measured or illegal
RANKED = 12  # lines of the table
LOOK: dict[str, Any] = {"box": box.SIMPLE_HEAD, "show_edge": False, "pad_edge": False}


def print_advice(console: Console, found: Advice) -> None:
    """Print the table, the reasons, what was left out, and the recommendation with its lines."""
    facts = found.machine
    threads = f"{facts['threads']} thread{'s' * (facts['threads'] != 1)}"
    write(
        console,
        f"{found.model}, inputs of {found.length:,}, random weights, on {found.device} "
        f"({facts['cpu']}, {threads}), {found.seconds:.0f} s",
    )
    ranked = [place for place in found.places if place.rank is not None]
    if ranked:
        console.print()
        console.print(_table(found, ranked[:RANKED]))
        if len(ranked) > RANKED:
            write(console, f"and {len(ranked) - RANKED} more that were measured; --json has all.")
        console.print()
        for place in ranked[:RANKED]:
            write(console, f"{place.rank}. {place.name}: {place.reason}", rest="   ")
            write(console, f"quality: {place.evidence_told}", first="   ", rest="   ")
    _left_out(console, found)
    console.print()
    write(console, found.sentence)
    for note in found.notes:
        write(console, note, first="- ", rest="  ")
    _lines(console, found)


def _table(found: Advice, places: list[Place]) -> Table:
    from suffice.advise.rank import sized, timed
    from suffice.advise.request import each

    table = Table(**LOOK)
    table.add_column("")
    table.add_column("composition")
    reads = any(place.first_seconds is not None for place in places)
    columns = [each(found.unit), "x Standard", *(["reading"] if reads else []), "needs"]
    for name in (*columns, "faster from"):
        table.add_column(name, justify="right", no_wrap=True)
    for place in places:
        ratio = "" if place.ratio is None else f"{place.ratio.median:.2f}"
        first = [timed(place.first_seconds)] if place.first_seconds is not None else []
        table.add_row(
            str(place.rank),
            place.name.replace("+", " +"),
            timed(place.seconds.median),
            ratio,
            *first,
            sized(place.needs.total),
            "" if place.name == "standard" else _from(place.crossover),
        )
    return table


def _from(crossover: Crossover | None) -> str:
    """Return from which length on a mechanism is faster."""
    if crossover is None:
        return "not measured"
    lengths = [length for length, _ in crossover.ratios]
    if crossover.at is None:
        return f"not within {lengths[0]} to {lengths[-1]}"
    return f"{crossover.at}" if crossover.at > lengths[0] else f"{crossover.at} or less"


def _left_out(console: Console, found: Advice) -> None:
    """Tell some of each kind that has no rank."""
    rest = [place for place in found.places if place.rank is None]
    counts = Counter(place.status for place in rest)
    for status, count in counts.items():
        console.print()
        write(console, f"{status}: {count}")
        for place in [one for one in rest if one.status == status][:SHOWN]:
            why = place.reason.removeprefix(f"{status}: ")
            write(console, f"{place.name}: {why}", first="  ", rest="    ")
        if count > SHOWN:
            write(console, "  ...")


def _lines(console: Console, found: Advice) -> None:
    """Print the lines to use the winner by."""
    if found.winner is None:
        return
    for title, lines in (("Python", found.python), ("Command line", found.cli)):
        console.print(f"\n{title}:", markup=False)
        told = lines or ("no command reaches this composition; use the Python lines.",)
        console.print("\n".join(f"  {line}" for line in told), markup=False, soft_wrap=True)


def print_recipes(console: Console) -> None:
    """Print every recipe of the adviser."""
    from suffice.advise.recipes import RECIPES

    for name, one in RECIPES.items():
        write(console, f"{name}: {one.title}")
        write(console, f"{one.about} Source: {one.source}.", first="  ", rest="  ")


def print_recipe(console: Console, one: AdviceRecipe, found: Advice) -> None:
    """Print what a recipe says, beside what was found here."""
    write(console, f"{one.name}: {one.title}")
    write(console, f"{one.about} Source: {one.source}.")
    for line in one.held(found):
        write(console, line, first="- ", rest="  ")
    console.print()
