"""The tables and figures that `suffice reproduce` knows, and how much of each is finished."""

from __future__ import annotations

from rich import box
from rich.table import Table as Grid
from rich.text import Text

from suffice.cli.printed import console_of
from suffice.reproduce.edge import finished, wanted
from suffice.reproduce.request import FOLDER, ask
from suffice.reproduce.table import Table

OTHERS = {
    "flops": (
        "Equation 24 and true FLOPs",
        "v2 appendix B.2, v3 figures 2, 5, 6 and 7",
        "computed",
    ),
    "hellaswag": (
        "HellaSwag of GPT-2 124M, by both scorers",
        "v3 section 4.1",
        "from language models that --run trains",
    ),
    "conversion": ("Loss of converted and of healed models", "none", "from real checkpoints"),
    "evidence": ("What became of forty claims", "v1, v2, v3", "from all results"),
}


def list_tables(tables: dict[str, Table]) -> None:
    """Print every table with what is finished."""
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in ("table", "shows", "in the paper", "finished"):
        grid.add_column(Text(column), no_wrap=column == "table")
    for name, found in tables.items():
        grid.add_row(Text(name), Text(found.headline), Text(found.source), Text(_state(found)))
    for name, said in OTHERS.items():
        grid.add_row(Text(name), *map(Text, said))
    console_of().print(grid)


def _state(found: Table) -> str:
    """Say how much of a table is finished."""
    if found.shows in ("parts", "maps"):
        return "from " + ", ".join(found.parts)
    if found.shows == "edge":
        keys = wanted(found)
        return f"{len(finished(found, FOLDER / found.store, keys).groups)} of {len(keys)} groups"
    if not found.known:
        return f"recipe {found.recipe} is not there yet"
    request = ask(found)
    done = len(request.plan.cells) - len(request.missing)
    return f"{done} of {len(request.plan.cells)} cells, scale {request.recipe.scale}"
