"""The tables of the atlas: every mechanism that is legal, on every task of `recipes`.

A table is one task. Its rows are all mechanisms that the model can have, some of them at other
settings; further seeds of Standard show what chance alone says.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from suffice.comparison.recall import MAX_SEEDS, RECALL, Solved
from suffice.comparison.results import Cell, Results
from suffice.errors import ConfigError
from suffice.models import TranslatorConfig
from suffice.models.kinds import Sizes
from suffice.presets import PRESETS
from suffice.train.recipes import Recipe, recipe
from suffice_papers.atlas.recipes import HEADS, SOLVED, TASKS
from suffice_papers.tables import BASELINE, CLASSES, PERPLEXITY, SEEDS, Table, of_cells

NAME = "atlas"
HYBRIDS = ("linear+softmax:2", "gated_deltanet+softmax:2", "retnet+softmax:2")


def table_name(task: str, size: str) -> str:
    """Return the name of a table.

    Example:
        >>> table_name("two_hop", "300k")
        'atlas-two-hop-300k'
    """
    return f"{NAME}-{task}-{size}".replace("_", "-")


NAMES = {table_name(task, size): task for task, (_, size, _) in TASKS.items()}
"""The tables in the order of their training, with their tasks."""
TUNED_ON = dict.fromkeys(("imdb", "mnist", "womens_clothing", "translation_es"), "mnist")
TUNED_ON |= dict.fromkeys(("shakespeare", "stdlib"), "shakespeare")
"""Tasks whose learning rates a task takes; all others take those of the first."""
FURTHER = 12  # seeds of Standard alone, for what chance says


@cache
def atlas_table(name: str) -> Table:
    """Return a table of the atlas by its name, one of `NAMES`."""
    task = NAMES[name]
    data = TASKS[task][0]
    chosen = recipe(recipe_name(task))
    source = TUNED_ON.get(task, next(iter(TASKS)))
    return of_cells(
        name,
        chosen.title,
        "of no version",
        chosen.name,
        "",
        (HEADS,),
        (*CLASSES, PERPLEXITY) if data == "text" else CLASSES,
        mechanisms=tuple(
            n
            for n in settings(chosen.model)
            if n not in twins(chosen.name) and _is_legal(chosen, n)
        ),
        seeds=MAX_SEEDS if data in RECALL else SEEDS,
        tuned_on=table_name(source, TASKS[source][1]),
        further=FURTHER,
    )


def settings(model: Sizes) -> tuple[str, ...]:
    """Return the rows of a table before those that its model cannot have are left out."""
    window = reaching(model)
    windows = () if window >= model.length else (f"{BASELINE}+window:{window}",)
    return (*dict.fromkeys((BASELINE, *PRESETS)), *windows, *HYBRIDS)


def reaching(model: Sizes) -> int:
    """Return the smallest window with which the blocks together reach the whole input.

    Example:
        >>> reaching(recipe("atlas_mqar8_70k").model)
        13
    """
    depth = model.decoder_depth if isinstance(model, TranslatorConfig) else model.depth
    return -(-(model.length - 1) // depth) + 1


@cache
def twins(name: str) -> dict[str, str]:
    """Return the rows of a recipe that compute what an earlier row does, with that row."""
    chosen, first, same = recipe(name), {}, {}
    for mechanism in settings(chosen.model):
        if _is_legal(chosen, mechanism):
            computed = tuple(chosen.specs(mechanism, HEADS)), chosen.model_of(mechanism)
            original = first.setdefault(computed, mechanism)
            if original != mechanism:
                same[mechanism] = original
    return same


def _is_legal(chosen: Recipe, mechanism: str) -> bool:
    try:
        chosen.specs(mechanism, HEADS)
    except ConfigError:
        return False
    return True


REACHES = f"{BASELINE}, window that reaches"


def label(mechanism: str) -> str:
    """Return the name of a row that tables of several lengths share.

    Example:
        >>> label("standard+window:13"), label("mqa")
        ('standard, window that reaches', 'mqa')
    """
    return REACHES if mechanism.startswith(f"{BASELINE}+window:") else mechanism


STAIRS = {table_name(f"mqar{2 * n}", "70k"): table_name(f"mqar{n}", "70k") for n in (8, 16)}
"""Tables of recall by the one with half of the pairs: who fails there is not trained here."""
CLIMBS = (2, 3)  # seeds out of the first ones that have to solve the table below


def climbs(cells: Sequence[Cell]) -> bool:
    """Return whether the first seeds solved a table often enough for the one above it."""
    first = sorted(cells, key=lambda cell: cell.seed)[: CLIMBS[1]]
    return Solved.of(first, SOLVED).count >= CLIMBS[0]


def table_of(results: Results) -> str:
    """Return the name of the table that results belong to."""
    return table_name(*results.recipe.removeprefix(f"{NAME}_").rsplit("_", 1))


def recipe_name(task: str) -> str:
    """Return the name of the recipe of a task."""
    return f"{NAME}_{task}_{TASKS[task][1]}"
