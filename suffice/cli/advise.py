"""`suffice advise`: recommend an attention for a task on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.table import Table
from typer import Option

from suffice.choose.request import Request
from suffice.cli.options import Quiet, options_from_fields
from suffice.cli.terminal import (
    INTERRUPTED,
    RULED,
    Stopped,
    print_json,
    print_paragraph,
    print_text,
    to_json,
)
from suffice.errors import ConfigError
from suffice.utils.files import write_atomic

if TYPE_CHECKING:
    from suffice.choose import Advice, Place

MAX_ROWS = 12  # rows of the table


@options_from_fields
def advise(
    request: Request,
    *,
    out: Annotated[Path | None, Option(help="Write the advice as JSON to this file.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the advice as JSON only.")] = False,
    quiet: Quiet = False,
) -> None:
    """Recommend attention for a task on this machine, and the comparison that decides.

    Compositions that need too much are ruled out. The others are timed with Standard in the same
    rounds, with random weights in the model's sizes, until the minutes are used up. Only what your
    own comparisons show to suffice takes Standard's place. Ctrl-C ends the timing and prints the
    advice so far.
    """
    if out is not None and out.suffix != ".json":
        raise ConfigError(f"--out {out}: the advice is a file that ends in .json.")
    from suffice.choose import advise as find_advice
    from suffice.utils.progress import show

    with show(Console(stderr=True), quiet=quiet) as progress:
        progress.cell("measuring")
        advice = find_advice(request, progress=progress)
    content = advice.to_json()
    if out is not None:
        write_atomic(out, to_json(content))
    if as_json:
        print_json(content)
    else:
        print_advice(Console(highlight=False), advice)
    if advice.interrupted:
        raise Stopped("interrupted: the rest was not timed.", code=INTERRUPTED)


def print_advice(console: Console, advice: Advice) -> None:
    print_paragraph(console, advice.sentence)
    threads = advice.machine["threads"]
    where = f"{advice.machine['cpu']}, {threads} thread{'s' * (threads != 1)}"
    sizes = f"{advice.model}, inputs of {advice.length:,}, on {advice.device}"
    console.print()
    print_paragraph(console, f"{sizes} ({where}), {advice.seconds:.0f} s")
    legal = [place for place in advice.places if place.status in ("measured", "not measured")]
    if shown := legal[:MAX_ROWS]:
        console.print()
        console.print(_table(advice, shown))
        if any(place.ratio is None for place in shown):
            console.print("(in brackets: work by closed form, not timed with Standard)")
    console.print()
    for note in advice.notes:
        print_paragraph(console, note, first="- ", rest="  ")
    blocks: dict[str, Sequence[str]] = {}
    if advice.trial is not None:
        title = f"What decides ({advice.trial}; then --results FOLDER)"
        blocks[title] = [advice.trial.command]
    if advice.winner is not None:
        absent = ["none reaches it; suffice.choose builds it in Python."]
        blocks["Command line"] = advice.cli or absent
    for title, lines in blocks.items():
        print_text("\n  ".join([f"\n{title}:", *lines]), console)


def _table(advice: Advice, places: list[Place]) -> Table:
    from suffice.choose.advice import each, format_bytes, format_seconds

    table = Table("", "composition", **RULED)
    reads = any(place.first_seconds for place in places)
    for name in (each(advice.unit), "x Standard", *["reading"] * reads, "needs", "suffices"):
        table.add_column(name, justify="right", no_wrap=True)
    for place in places:
        verdicts = [one.verdict for one in place.evidence]
        times = [place.seconds, *[place.first_seconds] * reads]
        seconds, *first = ("" if t is None else format_seconds(t.median) for t in times)
        table.add_row(
            "" if place.rank is None else str(place.rank),
            place.name.replace("+", " +"),
            seconds,
            f"{place.ratio.median:.2f}" if place.ratio else f"({place.predicted:.2f})",
            *first,
            format_bytes(place.needs.total),
            f"{verdicts.count('suffices')} of {len(verdicts)}" if verdicts else "",
        )
    return table
