"""The probes that mechanisms are put through, in order: what can be done first, controls last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from suffice.probe.task import SOLVED, Task
from suffice.probe.views import copies, depths, shuffled, whole
from suffice.recipes import Recipe, recipe

ROWS = 4_096  # of an epoch, so that "solved at" is told in steps of 64
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
            look=copies(8, 16),
            beside="sliding_window",
        ),
        Task(name="induction", recipe=_short("induction", 4 if quick else 16), look=whole(8)),
        Task(
            name="passkey",
            recipe=_passkey(4 if quick else 20),
            look=depths(KEPT),
        ),
        Task(name="two_hop", recipe=hops, look=whole(), own=(CONTROL,) if quick else ()),
        Task(
            name="two_hop-1-layer",
            recipe=_sized(hops, epochs=hops.training.epochs, depth=1),
            look=whole(),
            own=(CONTROL,),
            must_fail="one layer cannot look up what it has found",
        ),
        replace(
            recalls[0],
            name=f"{recalls[0].name}-shuffled",
            pairs=None,
            own=(CONTROL,),
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
    one = _sized(base, options=options, epochs=epochs, d_model=d_model, **sizes)
    return Task(name=f"mqar-{pairs}-d{d_model}", recipe=one, look=whole(), pairs=pairs)


def _passkey(epochs: int) -> Recipe:
    base = replace(recipe("passkey"), title="Passkey among 1 other number in 36 tokens")
    return _sized(base, options={"length": 36, "decoys": 1}, epochs=epochs, length=36)


def _short(name: str, epochs: int) -> Recipe:
    return _sized(recipe(name), epochs=epochs)


def _sized(
    base: Recipe, *, epochs: int, options: dict[str, Any] | None = None, **sizes: Any
) -> Recipe:
    """Return a recipe of other sizes, whose training ends where its task is solved."""
    given = {**dict(base.task_options), **(options or {}), "rows": ROWS}
    return replace(
        base,
        task_options=tuple(given.items()),
        model=replace(base.model, **sizes),
        training=replace(base.training, epochs=epochs, enough=SOLVED),
    )
