"""Progress display: bars on a terminal, plain lines elsewhere, nothing when quiet.

`show` follows one piece of work after another (a comparison, a training), `bar` counts items (a
download, documents), `workers` follows pieces of work that run side by side. rich is imported where
something is drawn.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.progress import Progress as RichProgress

WIDE_TERMINAL = 120  # columns of a terminal that has room for a long bar
BASIS_SHARE, BASIS_SECONDS = 0.01, 60.0  # of the work, or of time, before the rest is estimated


class Progress(Protocol):
    """Receives the progress of a training or a comparison."""

    def cell(self, description: str) -> None:
        """Begin the next piece of work, whether or not the one before was finished."""

    def step(self, done: int, total: int) -> None:
        """Set how much of the cell is done; cheap enough for every optimiser step."""

    def say(self, text: str) -> None:
        """Replace the note below the cell, such as its latest loss."""

    def finish(self, text: str) -> None:
        """Tell how a cell ended: below the bar on a terminal, else in a line."""


class Silent(Progress):
    """Shows nothing."""


class Display:
    """One bar over all cells on a terminal, one line per interval elsewhere.

    It is redrawn from `step` alone: a refreshing thread would take time from small models.
    """

    def __init__(
        self, console: Console, *, cells: int, done: int, clock: Callable[[], float]
    ) -> None:
        self.console = console
        self.rich: RichProgress | None = None
        self.live: Live | None = None
        self._cells = cells
        self._done_before = done
        self._started_cells = done
        self._share = 0.0
        self._description = self._remark = ""
        self._clock = clock
        self._start = clock()
        self._interval = 10.0
        if console.is_terminal:
            from rich.live import Live

            self._interval = 0.25
            self.rich = _overall_bar(console)
            self.rich.add_task("", total=cells, left="")
            self.live = Live(
                get_renderable=self._drawing, console=console, auto_refresh=False, transient=True
            )
        self._next_drawing = self._start + self._interval

    def cell(self, description: str) -> None:
        self._started_cells += 1
        self._share = 0.0
        self._description, self._remark = description, ""
        if self.rich:
            self.draw()

    def step(self, done: int, total: int) -> None:
        """Set how much of the cell is done and draw when the interval is over."""
        self._share = done / total
        self._draw_when_due()

    def _draw_when_due(self) -> None:
        if self._clock() >= self._next_drawing:
            self._next_drawing = self._clock() + self._interval
            self.draw()

    def say(self, text: str) -> None:
        self._remark = text

    def draw(self) -> None:
        """Redraw the bar, or print a line."""
        if self.rich:
            self.rich.update(
                self.rich.task_ids[0],
                completed=self.finished,
                description=self.title,
                left=self.left,
            )
            self.live.refresh()
        else:
            share = f"{self.finished / self._cells:.0%}"
            _print(
                self.console, ", ".join(filter(None, [self.title, self._remark, share, self.left]))
            )

    def finish(self, text: str) -> None:
        if self.rich:
            self.say(text)
        else:
            _print(self.console, text)

    def _drawing(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        remark = Text(f"  {self._remark}", style="dim", no_wrap=True, overflow="ellipsis")
        return Group(self.rich, *([remark] if self._remark else []))

    @property
    def title(self) -> str:
        number = f"cell {max(self._started_cells, 1)}/{self._cells}" if self._cells > 1 else ""
        return f"{number} {self._description}".strip() or "training"

    @property
    def finished(self) -> float:
        """Cells that are done, with the share of the present one."""
        return max(self._started_cells - 1, self._done_before) + self._share

    @property
    def left(self) -> str:
        """The time left at the average pace of this session; empty before that says anything."""
        finished_here, elapsed = self.finished - self._done_before, self._clock() - self._start
        share = finished_here / (self._cells - self._done_before or 1)
        if finished_here <= 0.0 or (share < BASIS_SHARE and elapsed < BASIS_SECONDS):
            return ""
        pace = elapsed / finished_here
        seconds = round(pace * max(self._cells - self.finished, 0.0))
        hours, minutes = divmod(seconds // 60, 60)
        clock = f"{hours}:{minutes:02}" if hours else f"{minutes}"
        return f"{clock}:{seconds % 60:02} left"


@contextlib.contextmanager
def show(
    console: Console,
    *,
    cells: int = 1,
    done: int = 0,
    quiet: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Progress]:
    """Show the progress of cells, one after another, while the block runs.

    A bar with the time left on a terminal, one line every ten seconds elsewhere; nothing when
    quiet and in every process of a group but the first. Of all `cells`, `done` were done in an
    earlier session.
    """
    if quiet or not is_first_process():
        yield Silent()
        return
    display = Display(console, cells=cells, done=done, clock=clock)
    with display.live or contextlib.nullcontext():
        yield display


@contextlib.contextmanager
def bar(
    console: Console | None, description: str, total: int | None = None, *, unit: str = ""
) -> Iterator[Callable[..., None]]:
    """Yield `advance(count=1, remark="")`, which counts on a bar; no console shows nothing."""
    if console is None:
        yield lambda _count=1, _remark="": None
        return
    from rich import progress as rich

    if unit == "bytes":
        counts = [rich.DownloadColumn(), rich.TransferSpeedColumn()]
    else:
        form = "{task.completed:,}" + ("/{task.total:,}" if total else "")
        counts = [rich.TextColumn(f"{form} {unit}{{task.fields[remark]}}".strip(), markup=False)]
    time_column = rich.TimeRemainingColumn() if total else rich.TimeElapsedColumn()
    with _rich_progress(console, rich.BarColumn(), *counts, time_column) as display:
        task = display.add_task(description, total=total or None, remark="")

        def advance(count: int = 1, remark: str = "") -> None:
            display.update(task, advance=count, remark=remark and f", {remark}")

        yield advance
        display.update(task, total=display.tasks[0].completed)  # some items may have been skipped


class Workers(Display):
    """Cells that run side by side: on a terminal a bar each below that of all, else some lines."""

    def __init__(self, console: Console, *, cells: int, done: int = 0, **options: Any) -> None:
        super().__init__(console, cells=cells, done=done, **options)
        self._ended = done
        self._shares: dict[int, float] = {}  # of running cells, by worker
        self._bars: dict[int, Any] = {}

    def begin(self, worker: int, cell: str) -> None:
        """Begin a cell on a worker."""
        self._shares[worker] = 0.0
        if self.rich:
            self._bars[worker] = self.rich.add_task(cell, total=1.0, left="")

    def update(self, worker: int, share: float) -> None:
        """Set how much of a worker's cell is done and draw when the interval is over."""
        self._shares[worker] = share
        if self.rich:
            self.rich.update(self._bars[worker], completed=share)
        self._draw_when_due()

    def end(self, worker: int, *, finished: bool) -> None:
        """End a worker's cell, which counts if it is finished."""
        self._ended += finished
        del self._shares[worker]
        if self.rich:
            self.rich.remove_task(self._bars.pop(worker))

    def tell(self, text: str) -> None:
        _print(self.console, text)

    @property
    def title(self) -> str:
        return f"cells {self._ended}/{self._cells}, {len(self._shares)} in training"

    @property
    def finished(self) -> float:
        """Cells that are done, with the shares of the present ones."""
        return self._ended + sum(self._shares.values())


@contextlib.contextmanager
def workers(console: Console, *, quiet: bool = False, **options: Any) -> Iterator[Workers]:
    """Show the progress of cells that run side by side while the block runs; see `show`."""
    if quiet:
        from rich.console import Console as RichConsole

        console = RichConsole(quiet=True, force_terminal=False)
    display = Workers(console, **{"clock": time.monotonic, **options})
    with display.live or contextlib.nullcontext():
        yield display


def is_first_process() -> bool:
    """Return whether this process is the first of its group, or in none."""
    import torch.distributed as dist

    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def _overall_bar(console: Console) -> RichProgress:
    from rich import progress as rich

    columns: list[Any] = [
        rich.BarColumn(bar_width=24 if console.width >= WIDE_TERMINAL else 10),
        rich.TaskProgressColumn(),
        rich.TextColumn("{task.fields[left]}", markup=False),
    ]
    return _rich_progress(console, *columns, auto_refresh=False, transient=True)


def _rich_progress(console: Console, *columns: Any, **options: bool) -> RichProgress:
    from rich import progress as rich

    description = rich.TextColumn("{task.description}", markup=False)
    return rich.Progress(description, *columns, console=console, **options)


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
