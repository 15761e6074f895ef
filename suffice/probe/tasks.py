"""The probes that mechanisms are put through, in order: what can be done first, controls last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from suffice.data import IGNORE_INDEX, Dataset, Split, load
from suffice.data.synthetic import KEY, stream
from suffice.recipes import Recipe, recipe

SOLVED = 0.99
"""Share of the validation answers at which a task counts as solved, and training ends."""


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """Some of a task's questions, all of one difficulty.

    Args:
        name: what sets them apart; "" for all questions there are.
        split: the rows and what is asked of them.
        nearest: tokens from a question back to what answers it, the least of these questions.
        cache_tokens: capacity of the rolling KV cache during evaluation; None = a plain
            forward pass without cache.
    """

    name: str
    split: Split
    nearest: int = 1
    cache_tokens: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """A training task of a probe and the questions that follow it.

    Args:
        name: of its folder and in tables.
        recipe: what is trained.
        views: from the data set to the questions for the trained model.
        pairs: of an associative recall, which the figure shows; None for other tasks.
        must_fail: why no model can do this; "" for tasks that can be done.
        only: the mechanisms to train, whatever is requested; () = the requested ones.
        control: a mechanism that is always trained as well, for comparison.
        change: what is done to the data first.
    """

    name: str
    recipe: Recipe
    views: Callable[[Dataset], tuple[View, ...]]
    pairs: int | None = None
    must_fail: str = ""
    only: tuple[str, ...] = ()
    control: str | None = None
    change: Callable[[Dataset], Dataset] = lambda dataset: dataset

    def mechanisms(self, requested: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the requested mechanisms that this task trains."""
        if self.only:
            return self.only
        missing = self.control is not None and self.control not in requested
        return (*requested, self.control) if missing else requested  # type: ignore[return-value]


DEPTHS = 4  # parts of equal width that a row's distances are cut into


def all_questions(nearest: int = 1) -> Callable[[Dataset], tuple[View, ...]]:
    """Return a view of all questions in the test split."""
    return lambda dataset: (View(name="", split=dataset.test, nearest=nearest),)


def copies(shortest: int, room: int) -> Callable[[Dataset], tuple[View, ...]]:
    """Return views of sequences of the trained length, and of longer ones up to `room` symbols."""

    def look(dataset: Dataset) -> tuple[View, ...]:
        most = int((dataset.train.labels != IGNORE_INDEX).sum(dim=1).max())
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


def depths(cache_tokens: int) -> Callable[[Dataset], tuple[View, ...]]:
    """Return views of passkeys by distance, with and without a rolling KV cache."""

    def look(dataset: Dataset) -> tuple[View, ...]:
        back = distances(dataset.test)
        least, most = int(back.min()), int(back.max())
        edges = [least + (most + 1 - least) * part // DEPTHS for part in range(DEPTHS + 1)]
        views = []
        for low, high in zip(edges, edges[1:], strict=False):
            rows = ((back >= low) & (back < high)).nonzero()[:, 0]
            name = f"{low}-{high - 1} tokens back"
            views.append(View(name=name, split=dataset.test.take(rows), nearest=low))
        rolled = [
            replace(view, name=f"{view.name}, {cache_tokens} kept", cache_tokens=cache_tokens)
            for view in views
        ]
        return (*views, *rolled)

    return look


def distances(split: Split) -> torch.Tensor:
    """Return the distance between each row's passkey and its query, int64 [N]."""
    first = (split.labels != IGNORE_INDEX).long().argmax(dim=1)
    return first - (split.inputs == KEY).long().argmax(dim=1) - 1


def shuffled(dataset: Dataset) -> Dataset:
    """Return a control task whose answers are shuffled among the questions of their rows.

    What is left to find is which answers a row has, so right is no more than the chance level; who
    does better has learned the answers in some other way.
    """

    def split(part: str, original: Split) -> Split:
        labels, random = original.labels.clone(), stream(dataset.name, f"shuffled {part}", 0)
        for row in labels:
            at = (row != IGNORE_INDEX).nonzero()[:, 0]
            row[at] = row[at[torch.from_numpy(random.permutation(len(at)))]]
        return replace(original, labels=labels)

    parts = {part: split(part, getattr(dataset, part)) for part in ("train", "validation", "test")}
    return replace(dataset, **parts)


ROWS = 4_096  # of an epoch, so that "solved at" counts steps of 64
KEPT = 8  # tokens, by the rolling memory of the passkey
CONTROL = "standard"


def suite(*, quick: bool = False) -> tuple[Task, ...]:
    """Return the tasks.

    Args:
        quick: minutes on two cores: fewer and easier recalls, of one width, fewer epochs, and two
            hops with one mechanism alone, as they take the longest to learn.
    """
    recalls = [_recall(pairs, 64, epochs=epochs) for pairs, epochs in ((4, 4), (8, 5))]
    if not quick:
        recalls = [
            _recall(pairs, d_model, epochs=16) for pairs in (4, 8, 16, 32) for d_model in (32, 64)
        ]
    hops = _short("two_hop", 14 if quick else 40)
    return (
        *recalls,
        Task(
            name="copy",
            recipe=_short("copy", 4 if quick else 20),
            views=copies(8, 16),
            control="sliding_window",
        ),
        Task(
            name="induction", recipe=_short("induction", 4 if quick else 16), views=all_questions(8)
        ),
        Task(
            name="passkey",
            recipe=_passkey(4 if quick else 20),
            views=depths(KEPT),
        ),
        Task(name="two_hop", recipe=hops, views=all_questions(), only=(CONTROL,) if quick else ()),
        Task(
            name="two_hop-1-layer",
            recipe=_sized(hops, epochs=hops.training.epochs, depth=1),
            views=all_questions(),
            only=(CONTROL,),
            must_fail="one layer cannot look up what it has found",
        ),
        replace(
            recalls[0],
            name=f"{recalls[0].name}-shuffled",
            pairs=None,
            only=(CONTROL,),
            change=shuffled,
            must_fail="the answers stand behind the wrong keys",
        ),
    )


def _recall(pairs: int, d_model: int, *, epochs: int) -> Task:
    many = 2 * pairs
    options = {"pairs": pairs, "keys": many, "values": many}
    sizes = {"vocabulary_size": 2 * many, "length": 3 * pairs}
    base = replace(
        recipe("mqar"),
        title=f"Multi-query associative recall, {pairs} pairs, d_model {d_model}",
    )
    one = _sized(base, changes=options, epochs=epochs, d_model=d_model, **sizes)
    return Task(name=f"mqar-{pairs}-d{d_model}", recipe=one, views=all_questions(), pairs=pairs)


def _passkey(epochs: int) -> Recipe:
    base = replace(recipe("passkey"), title="Passkey among 1 other number in 36 tokens")
    return _sized(base, changes={"length": 36, "decoys": 1}, epochs=epochs, length=36)


def _short(name: str, epochs: int) -> Recipe:
    return _sized(recipe(name), epochs=epochs)


def _sized(
    base: Recipe, *, epochs: int, changes: dict[str, Any] | None = None, **sizes: Any
) -> Recipe:
    """Return a recipe of other sizes, whose training ends where its task is solved."""
    options = {**dict(base.task_options), **(changes or {}), "rows": ROWS}
    return replace(
        base,
        task_options=tuple(options.items()),
        model=replace(base.model, **sizes),
        training=replace(base.training, epochs=epochs, enough=SOLVED),
    )
