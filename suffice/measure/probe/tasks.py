"""Recipes and test questions of the probes: tasks that can be done first, controls last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from suffice.data import IGNORE_INDEX, Dataset, Split, load
from suffice.data.synthetic import KEY
from suffice.recipes import Recipe
from suffice.recipes import recipe as recipe_named

SOLVED = 0.99
"""Share of the validation answers at which a task counts as solved, and training ends."""


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """The questions of a task that have one difficulty."""

    name: str  # name of the difficulty; "" for all questions of the test part
    split: Split  # rows and their questions
    nearest: int = 1  # least number of tokens from a question back to its answer
    # capacity of the rolling KV cache during evaluation; None = a plain forward pass without cache
    cache_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """A recipe of a probe, and the mechanisms that train it."""

    name: str  # name of the task, its folder and its table
    recipe: Recipe  # the recipe
    must_fail: str = ""  # reason why no model can do this; "" for tasks that can be done
    # the mechanisms to train, whatever is requested; () = the requested ones
    only: tuple[str, ...] = ()
    control: tuple[str, ...] = ()  # mechanisms that are always trained as well

    @property
    def pairs(self) -> int | None:
        """The pairs of an associative recall, which the figure shows; None for other tasks."""
        return None if self.must_fail else dict(self.recipe.task_options).get("pairs")

    def mechanisms(self, requested: tuple[str, ...]) -> tuple[str, ...]:
        """Return the mechanisms that this task trains."""
        return self.only or tuple(dict.fromkeys((*requested, *self.control)))


NEAREST = {"induction": 8}  # tokens back to the answer, at least; 1 for other tasks
DEPTHS = 4  # parts of equal width that a row's distances are cut into
CACHE = 8  # tokens, capacity of the rolling KV cache of the passkey


def views(dataset: Dataset) -> tuple[View, ...]:
    """Return the questions that a model trained on a synthetic task is tested on."""
    if dataset.name == "copy":
        return _copies(dataset)
    if dataset.name == "passkey":
        return _depths(dataset)
    return (View(name="", split=dataset.test, nearest=NEAREST.get(dataset.name, 1)),)


def _copies(dataset: Dataset) -> tuple[View, ...]:
    counts = dataset.train.answers
    shortest, most = int(counts.min()), int(counts.max())
    room = dataset.train.inputs.shape[1] // 2
    symbols = dataset.num_classes - 2
    longer = load(
        "copy", symbols=symbols, shortest=most + 1, length=room, room=room, rows=1, seed=1
    )
    return (
        View(name=f"{shortest}-{most} symbols, as trained", split=dataset.test, nearest=shortest),
        View(name=f"{most + 1}-{room} symbols, longer", split=longer.test, nearest=most + 1),
    )


def _depths(dataset: Dataset) -> tuple[View, ...]:
    back = distances(dataset.test)
    least, most = int(back.min()), int(back.max())
    edges = [least + (most + 1 - least) * part // DEPTHS for part in range(DEPTHS + 1)]
    plain = []
    for low, high in zip(edges, edges[1:], strict=False):
        rows = ((back >= low) & (back < high)).nonzero()[:, 0]
        name = f"{low}-{high - 1} tokens back"
        plain.append(View(name=name, split=dataset.test.take(rows), nearest=low))
    rolled = [
        replace(view, name=f"{view.name}, {CACHE} kept", cache_tokens=CACHE) for view in plain
    ]
    return (*plain, *rolled)


def distances(split: Split) -> torch.Tensor:
    """Return the distance between each row's passkey and its query, int64 [N]."""
    first = (split.labels != IGNORE_INDEX).long().argmax(dim=1)
    return first - (split.inputs == KEY).long().argmax(dim=1) - 1


ROWS = 4_096  # of an epoch, so that "solved at" counts steps of 64
STANDARD = "standard"


def suite(*, quick: bool = False) -> tuple[Task, ...]:
    """Return the tasks.

    Args:
        quick: minutes on two cores: fewer and easier recalls, of one width, fewer epochs, and two
            hops with one mechanism alone, as they take the longest to learn.
    """
    widths = ((4, 64, 4), (8, 64, 5))  # pairs, d_model, epochs
    if not quick:
        widths = tuple((pairs, d_model, 16) for pairs in (4, 8, 16, 32) for d_model in (32, 64))
    recalls = [
        Task(name=f"mqar-{pairs}-d{d_model}", recipe=_recall(pairs, d_model, epochs))
        for pairs, d_model, epochs in widths
    ]
    short, long = (4, 14) if quick else (20, 40)
    copies, hops = _sized("copy", short), _sized("two_hop", long)
    key = "Passkey among 1 other number in 36 tokens"
    keys = _sized("passkey", short, key, {"length": 36, "decoys": 1}, {"length": 36})
    pairs, d_model, epochs = widths[0]
    return (
        *recalls,
        Task(name="copy", recipe=copies, control=("sliding_window",)),
        Task(name="induction", recipe=_sized("induction", 4 if quick else 16)),
        Task(name="passkey", recipe=keys),
        Task(name="two_hop", recipe=hops, only=(STANDARD,) if quick else ()),
        Task(
            name="two_hop-1-layer",
            recipe=replace(hops, model=replace(hops.model, depth=1)),
            only=(STANDARD,),
            must_fail="one layer cannot look up what it has found",
        ),
        Task(
            name=f"mqar-{pairs}-d{d_model}-shuffled",
            recipe=_recall(pairs, d_model, epochs, shuffled=True),
            only=(STANDARD,),
            must_fail="the answers stand behind the wrong keys",
        ),
    )


def _recall(pairs: int, d_model: int, epochs: int, **options: bool) -> Recipe:
    count = 2 * pairs
    return _sized(
        "mqar",
        epochs,
        f"Multi-query associative recall, {pairs} pairs, d_model {d_model}",
        {"pairs": pairs, "keys": count, "values": count, **options},
        {"vocabulary_size": 2 * count, "length": 3 * pairs, "d_model": d_model},
    )


def _sized(
    name: str,
    epochs: int,
    title: str | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> Recipe:
    base = recipe_named(name)
    return replace(
        base,
        title=title or base.title,
        task_options=tuple({**dict(base.task_options), **options, "rows": ROWS}.items()),
        model=replace(base.model, **sizes),
        training=replace(base.training, epochs=epochs, enough=SOLVED),
    )
