"""The README's table of measurements: one published result at one number of heads."""

from __future__ import annotations

from suffice.papers.results import published
from suffice.papers.rows import Figure, rows
from suffice.papers.tables import table

TABLE, HEADS = "v2-imdb", 4


def measured() -> str:
    """Return the table as Markdown.

    Raises:
        LookupError: if the result is not there.
    """
    spec = table(TABLE)
    result = published(spec)
    if result is None:
        raise LookupError(f"suffice/results has no {TABLE}.")
    lines = [
        "| mechanism | parameters of a layer | test accuracy | in the paper | test loss |",
        "|---|--:|--:|--:|--:|",
    ]
    for row in rows(spec, list(result.results.cells), (HEADS,)):
        figures = row.figures
        lines.append(
            f"| `{row.mechanism}` | {_mean(figures['parameters_layer'], ',.0f')} "
            f"| {_interval(figures['test_accuracy'], 100.0, '.2f')} "
            f"| {100 * figures['test_accuracy'].paper:.2f} "
            f"| {_interval(figures['test_loss'], 1.0, '.3f')} |"
        )
    return "\n".join(lines)


def _mean(figure: Figure, form: str) -> str:
    return "" if figure.ours is None else f"{figure.ours.mean:{form}}"


def _interval(figure: Figure, factor: float, form: str) -> str:
    """Return mean ± half of the 95% interval."""
    if figure.ours is None:
        return ""
    half = (figure.ours.high - figure.ours.low) / 2.0
    return f"{factor * figure.ours.mean:{form}} ± {factor * half:{form}}"
