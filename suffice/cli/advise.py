"""`suffice advise`: recommend an attention for a task on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Table
from typer import Option

from suffice.cli.options import ADVICE_TASKS, Quiet, known, options_from_fields
from suffice.cli.terminal import INTERRUPTED, RULED, Stopped, print_json, print_paragraph, to_json
from suffice.errors import ConfigError
from suffice.utils.files import write_atomic
from suffice.utils.grammar import split_list

if TYPE_CHECKING:
    from suffice.choose import Advice, Place

MINUTES = 3.0
MAX_ROWS = 12  # rows of the table


@dataclass(frozen=True, kw_only=True)
class AdviceOptions:
    """The limits of a request, the model it is about and its evidence; None where not given."""

    length: Annotated[
        int | None, Option(help="Tokens or patches of an input; the model's by default.")
    ] = None
    memory: Annotated[
        str | None,
        Option(
            help="Memory for weights, state and activations, such as 2GB; this machine's by "
            "default."
        ),
    ] = None
    latency: Annotated[
        str | None,
        Option(help="Maximum time for each generated token or input, such as 30ms/token."),
    ] = None
    device: Annotated[str, Option(help="here (a GPU if there is one), cpu or cuda.")] = "here"
    quality: Annotated[
        str | None,
        Option(
            help="Test accuracy that may be lost, 1% by default, at which --results are judged."
        ),
    ] = None
    model: Annotated[
        str | None,
        Option(
            help="Model whose sizes are measured: 15m, 110m or a configuration for lm, a recipe of "
            "`suffice compare` for the others."
        ),
    ] = None
    checkpoint: Annotated[
        Path | None, Option(help="Folder of a language model whose sizes are measured.")
    ] = None
    minutes: Annotated[float, Option(help="Minutes of timing.")] = MINUTES
    mechanisms: Annotated[
        str | None,
        Option(
            help="Only these, separated by commas: mechanisms with changes, such as "
            "efficient+window:512+memory:8; kv:N, window:W, sinks:N, full:N, softmax:N, memory:8 "
            "or 4, values:4, weights:8 or 4."
        ),
    ] = None
    results: Annotated[
        list[Path] | None,
        Option(
            metavar="<path>",
            help="Folder of a finished `suffice compare`, which decides; repeatable.",
        ),
    ] = None
    recall: Annotated[
        bool,
        Option(
            "--recall",
            help="The language model has to look things up in its input: only what solves tasks "
            "of recall is recommended.",
        ),
    ] = False

    def words(self) -> dict[str, Any]:
        return {
            **vars(self),
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint),
            "mechanisms": split_list(self.mechanisms or ""),
            "results": [str(folder) for folder in self.results or ()],
        }


@options_from_fields
def advise(
    task: Annotated[
        str | None,
        Option(
            help="lm (writes text), classify (reads text), image or translate.",
            **known("task", "suffice.cli.options", "ADVICE_TASKS"),
        ),
    ] = None,
    *,
    limits: AdviceOptions,
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
    if task is None:
        raise ConfigError(f"give --task with one of {', '.join(ADVICE_TASKS)}.")
    if out is not None and out.suffix != ".json":
        raise ConfigError(f"--out {out}: the advice is a file that ends in .json.")
    from suffice.choose import Request
    from suffice.choose import advise as find_advice
    from suffice.utils.progress import show

    request = Request.parse(task, **limits.words())
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
    """Print the recommendation, the table, notes, the deciding comparison and the lines to use."""
    print_paragraph(console, advice.sentence)
    facts = advice.machine
    threads = f"{facts['threads']} thread{'s' * (facts['threads'] != 1)}"
    console.print()
    print_paragraph(
        console,
        f"{advice.model}, inputs of {advice.length:,}, on {advice.device} ({facts['cpu']}, "
        f"{threads}), {advice.seconds:.0f} s",
    )
    legal = [place for place in advice.places if place.status in ("measured", "not measured")]
    if legal:
        console.print()
        console.print(_table(advice, legal[:MAX_ROWS]))
        if any(place.ratio is None for place in legal[:MAX_ROWS]):
            console.print("(in brackets: work by closed form, not timed with Standard)")
    console.print()
    for note in advice.notes:
        print_paragraph(console, note, first="- ", rest="  ")
    blocks: list[tuple[str, tuple[str, ...]]] = []
    if advice.trial is not None:
        blocks.append(
            (f"What decides ({advice.trial}; then --results FOLDER)", (advice.trial.command,))
        )
    if advice.winner is not None:
        absent = ("none reaches it; suffice.choose builds it in Python.",)
        blocks.append(("Command line", advice.cli or absent))
    for title, lines in blocks:
        console.print(f"\n{title}:", markup=False)
        console.print("\n".join(f"  {line}" for line in lines), markup=False, soft_wrap=True)


def _table(advice: Advice, places: list[Place]) -> Table:
    from suffice.choose.candidates import format_bytes
    from suffice.choose.request import each
    from suffice.comparison.report.tables import seconds as format_seconds

    table = Table(**RULED)
    table.add_column("")
    table.add_column("composition")
    reads = any(place.first_seconds for place in places)
    reading = ("reading",) if reads else ()
    for name in (each(advice.unit), "x Standard", *reading, "needs", "suffices"):
        table.add_column(name, justify="right", no_wrap=True)
    for place in places:
        verdicts = [one.verdict for one in place.evidence]
        times = (place.seconds, place.first_seconds) if reads else (place.seconds,)
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
