"""The table of conversions as text: for the terminal, as CSV, and for docs/evidence.md."""

from __future__ import annotations

import csv
import io

from suffice.convert.certificate import LossChange
from suffice.measure.report.sheets import Line, Sheet
from suffice.reproduce.conversion.rows import Conversions, Row
from suffice.reproduce.conversion.subjects import wanted
from suffice.reproduce.shown import machine_line

CHANGES = ("naive", "closed", "healed", "control", "against_control")
COLUMNS = (
    "model",
    "attention",
    "state/token",
    "naive",
    "closed form",
    "healed",
    "control",
    "healed - control",
    "steps",
)
FIELDS = ("change", "low", "high", "before", "after", "rows", "tokens")


def sheet(found: Conversions) -> Sheet:
    """Lay the table out."""
    lines, last = [], None
    for row in found.rows:
        lines.append(Line(cells=_cells(row), starts_group=last is not None and row.subject != last))
        last = row.subject
    return Sheet(
        title="conversion: held-out loss after conversion and after healing",
        columns=COLUMNS,
        lines=tuple(lines),
        words=("attention",),
        caption=" ".join(notes(found)),
    )


def lines(found: Conversions) -> list[str]:
    """Return the table in Markdown, with what it says below it."""
    if not found.rows:
        return ["Nothing is published yet."]
    told = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    told += ["| " + " | ".join(_cells(row)) + " |" for row in found.rows]
    return [*told, "", *notes(found)]


def notes(found: Conversions) -> list[str]:
    """Say how to read the table, how it was made, and what is not there."""
    told = [
        "Changes of the loss of the model as it was, nats per token of held-out text, ± half of "
        "the 95% interval, paired by row; the last difference is between two models with the same "
        "budget. Naive: means of heads, maps left out. Control: the unconverted model after as "
        "many steps on the same rows, by the same optimiser, with cross-entropy alone. "
        "A stage that no look at the validation text found better than its start is left out."
    ]
    for name in dict.fromkeys(row.subject for row in found.rows):
        own = [row for row in found.rows if row.subject == name and row.closed is not None]
        if not own:
            continue
        judged = own[0].closed
        told.append(
            f"{name}: loss {judged.before:.4f}, {judged.tokens:,} tokens in {judged.rows} rows, "
            f"{_range([row.minutes[0] for row in own])} minutes of healing in each row and "
            f"{_range([row.minutes[1] for row in own])} of its control."
        )
    refused = [(row.subject, row.target, row.refused) for row in found.rows if row.refused]
    told += [f"{name} cannot become {target}: {why}" for name, target, why in refused]
    for line in dict.fromkeys(machine_line(row.machine) for row in found.rows):
        told.append(f"Ours on {line}.")
    there = {row.key for row in found.rows}
    if missing := [
        f"{name} to {target}" for name, target in wanted() if (name, target) not in there
    ]:
        told.append(f"Not run: {', '.join(missing)}.")
    return told


def to_csv(found: Conversions) -> str:
    """Write one line for each change."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["subject", "target", "steps", "minutes", "of", *FIELDS])
    for row in found.rows:
        for name in CHANGES:
            change = getattr(row, name)
            if change is not None:
                values = [getattr(change, field) for field in FIELDS]
                start = [row.subject, row.target, row.steps, row.minutes[0], name]
                writer.writerow([*start, *["" if value is None else value for value in values]])
    return stream.getvalue()


def _cells(row: Row) -> tuple[str, ...]:
    if row.refused:
        return (row.subject, row.target, "", "refused", *[""] * (len(COLUMNS) - 4))
    return (
        row.subject,
        row.target,
        f"{row.state[0]} -> {row.state[1]}",
        *(_interval(getattr(row, name)) for name in CHANGES),
        f"{row.steps:,}",
    )


def _interval(change: LossChange | None) -> str:
    """Write a change with half the width of its interval, in whose middle it stands.

    Example:
        >>> _interval(None)
        ''
    """
    if change is None:
        return ""
    around = "" if change.low is None else f" ± {(change.high - change.low) / 2:.4f}"
    return f"{change.change:+.4f}{around}"


def _range(minutes: list[float]) -> str:
    """Write the least and the most of some minutes.

    Example:
        >>> _range([1.0, 2.04]), _range([1.01, 1.04])
        ('1.0 to 2.0', '1.0')
    """
    least, most = f"{min(minutes):.1f}", f"{max(minutes):.1f}"
    return least if least == most else f"{least} to {most}"
