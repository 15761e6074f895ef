"""How long work over texts tells where it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from operator import length_hint
from typing import TYPE_CHECKING

from suffice.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console


@contextlib.contextmanager
def counting(
    console: Console | None, description: str, total: int
) -> Iterator[Callable[[int, str], None]]:
    """Show a bar of documents while the block runs; give the function that advances it.

    Args:
        console: where to show it; None shows nothing.
        description: what is being done.
        total: how many documents there are, 0 where nobody knows.

    Yields:
        A function of the documents done since the last call, and a remark beside the bar.
    """
    if console is None:
        yield lambda _count, _remark: None
        return
    from rich import progress as rich

    columns = (
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        rich.TextColumn("{task.completed} documents, {task.fields[remark]}", markup=False),
        rich.TimeElapsedColumn(),
    )
    with rich.Progress(*columns, console=console) as progress:
        task = progress.add_task(description, total=total or None, remark="")

        def advance(count: int, remark: str) -> None:
            progress.update(task, advance=count, remark=remark)

        yield advance
        # some are passed over, and of a stream nobody knew: these were all
        progress.update(task, total=progress.tasks[0].completed)


def number_of(documents: Iterable[str]) -> int:
    """Return how many documents there are, as far as they tell: 0 where nobody knows.

    Raises:
        ConfigError: if they are one text, of which each character would be a document.
    """
    if isinstance(documents, str):
        raise ConfigError("the documents are one text; give an iterable of texts, such as [text].")
    return length_hint(documents)
