"""What a trained model is asked: all of a test part, parts of it, or other rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from suffice.data import NOT_ASKED, Dataset, Split, load
from suffice.data.drawn import stream
from suffice.data.passkey import KEY
from suffice.probe.task import View

DEPTHS = 4  # parts of equal width that a row's distances are cut into


def whole(nearest: int = 1) -> Callable[[Dataset], tuple[View, ...]]:
    """Return a look at all questions of the test part."""
    return lambda dataset: (View(name="", split=dataset.test, nearest=nearest),)


def copies(shortest: int, room: int) -> Callable[[Dataset], tuple[View, ...]]:
    """Return a look at stretches as trained, and at longer ones that fill the row's room.

    Args:
        shortest: the fewest symbols that were trained on.
        room: of a row.
    """

    def look(dataset: Dataset) -> tuple[View, ...]:
        most = int((dataset.train.labels != NOT_ASKED).sum(dim=1).max())
        symbols = dataset.num_classes - 2
        longer = load(
            "copy", symbols=symbols, shortest=most + 1, length=room, room=room, rows=1, seed=1
        )
        trained = f"{shortest}-{most} symbols, as trained"
        more = f"{most + 1}-{room} symbols, longer"
        return (
            View(name=trained, split=dataset.test, nearest=shortest),
            View(name=more, split=longer.test, nearest=most + 1),
        )

    return look


def depths(kept: int) -> Callable[[Dataset], tuple[View, ...]]:
    """Return a look at passkeys by how far back they stand, with and without a rolling memory.

    Args:
        kept: tokens that the rolling memory keeps.
    """

    def look(dataset: Dataset) -> tuple[View, ...]:
        back = distances(dataset.test)
        least, most = int(back.min()), int(back.max())
        edges = [least + (most + 1 - least) * part // DEPTHS for part in range(DEPTHS + 1)]
        views = []
        for low, high in zip(edges, edges[1:], strict=False):
            rows = ((back >= low) & (back < high)).nonzero()[:, 0]
            name = f"{low}-{high - 1} tokens back"
            views.append(View(name=name, split=dataset.test.take(rows), nearest=low))
        rolled = [replace(view, name=f"{view.name}, {kept} kept", kept=kept) for view in views]
        return (*views, *rolled)

    return look


def distances(split: Split) -> torch.Tensor:
    """Return how far back each row's passkey stands from where it is asked for, int64 [N]."""
    first = (split.labels != NOT_ASKED).long().argmax(dim=1)
    return first - (split.inputs == KEY).long().argmax(dim=1) - 1


def shuffled(dataset: Dataset) -> Dataset:
    """Return a task whose answers stand behind the wrong questions of their rows.

    What is left to find is which answers a row has, so right is no more than the chance level; who
    does better was told the answers in some other way.
    """

    def split(part: str, given: Split) -> Split:
        labels, random = given.labels.clone(), stream(dataset.name, f"shuffled {part}", 0)
        for row in labels:
            at = (row != NOT_ASKED).nonzero()[:, 0]
            row[at] = row[at[torch.from_numpy(random.permutation(len(at)))]]
        return replace(given, labels=labels)

    parts = {part: split(part, getattr(dataset, part)) for part in ("train", "validation", "test")}
    return replace(dataset, **parts)
