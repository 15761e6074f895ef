"""Progress of work that names its parts itself."""

from __future__ import annotations

from collections.abc import Callable

from suffice.train import Progress


def as_cells(progress: Progress) -> Callable[[str, int, int], None]:
    """Return what is told (part, done, total) and shows each part of the work as a cell."""
    doing: list[str] = []

    def step(what: str, done: int, total: int) -> None:
        if what not in doing:
            doing.append(what)
            progress.cell(what)
        progress.step(done, total)

    return step
