"""One cell trained again, beside what was found the first time."""

from __future__ import annotations

from rich.console import Console

from suffice.errors import ConfigError, DataError
from suffice.measure.report.sheets import Line, Sheet
from suffice.measure.results import Cell
from suffice.measure.storage import cell_path, read_cell
from suffice.reproduce.finished import Key
from suffice.reproduce.request import Request
from suffice.reproduce.watch import told
from suffice.reproduce.work import Means, run_cells

AGAIN = "again"  # folder of such cells, inside the working folder


def twice(request: Request, key: Key, means: Means, *, console: Console, command: str) -> Sheet:
    """Train a cell anew and lay both out.

    Args:
        request: the table it belongs to.
        key: mechanism, heads, seed.
        means: how it is run.
        console: where progress is shown.
        command: what the folder names as its origin.

    Raises:
        ConfigError: if the table has no such mechanism.
        DataError: if the time was over before it was begun, or the folder cannot be written.
    """
    if key[0] not in request.table.mechanisms:
        raise ConfigError(
            f"{request.table.name} has no row {key[0]!r}; its mechanisms are "
            f"{', '.join(request.table.mechanisms)}."
        )
    folder = request.folder / AGAIN
    path = cell_path(folder, *key)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot replace {path} ({error.strerror}); choose another folder with --out."
        ) from error
    run_cells(request.plan, [key], folder, means, console=console, command=command)
    now = read_cell(folder, *key)
    if now is None:
        raise DataError(f"{told(key)} was not begun in time; give more --max-minutes.")
    before = next((cell for cell in request.finished if cell.key == key), None)
    return _sheet(request, key, before, now)


def _sheet(request: Request, key: Key, before: Cell | None, now: Cell) -> Sheet:
    lines = []
    for column in request.table.columns:
        ours = [None if cell is None else column.ours(cell) for cell in (before, now)]
        both = None not in ours
        texts = ["" if value is None else column.written(value) for value in ours]
        change = f"{ours[1] - ours[0]:+.4g}" if both else ""
        lines.append(Line(cells=(column.title, *texts, change)))
    return Sheet(
        title=f"{request.table.name}: {told(key)}, trained twice",
        columns=("figure", "finished", "again", "difference"),
        lines=tuple(lines),
        caption="Equal machines, versions and threads give equal scores; times differ.",
    )
