"""A table or figure of the paper: which cells it needs and how it is laid out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from suffice.recipes import RECIPES, recipe, stands_for
from suffice.reproduce.column import Column

MECHANISMS = ("standard", "optimised", "efficient", "super_attention")
BASELINE = "standard"
SEEDS = 5
TRAINED = ("curves",)
HEADS = ("curves", "heads")


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table or figure.

    Args:
        name: what it goes by here, such as "v2-imdb".
        title: one line for people.
        source: version and number in the paper.
        shows: "cells" of one recipe, "parts" of other tables, "edge" times, "maps" of what the
            models of other tables look at.
        recipe: name of the recipe of its cells.
        paper: name of the paper's table, see `suffice.measure.paper`.
        mechanisms: its rows.
        heads: each mechanism has a row for each.
        seeds: of each row.
        columns: in the paper's order.
        cells_of: the table that owns the cells, where two tables show the same trainings.
        parts: the tables that a summary or figure is drawn from.
        figures: names of the figures that are drawn.
        more: what the paper has of the same data, where ours are a part of it.
    """

    name: str
    title: str
    source: str
    shows: str
    recipe: str = ""
    paper: str = ""
    mechanisms: tuple[str, ...] = MECHANISMS
    heads: tuple[int, ...] = ()
    seeds: int = SEEDS
    columns: tuple[Column, ...] = ()
    cells_of: str = ""
    parts: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    more: str = ""

    @property
    def instead_of(self) -> str | None:
        """The paper's data that others stand in for here, None for the paper's own."""
        paper = stands_for(self.recipe)
        return None if paper is None else recipe(paper).title.partition(",")[0]

    @property
    def headline(self) -> str:
        """The title, with what stands for what."""
        return self.title + (f", in place of {self.instead_of}" if self.instead_of else "")

    @property
    def store(self) -> str:
        """The name that its results and working folder go by."""
        return self.cells_of or self.name

    @property
    def trained(self) -> bool:
        """Whether its results are cells that were trained."""
        return self.shows == "cells"

    @property
    def known(self) -> bool:
        """Whether the recipe is there."""
        return not self.recipe or self.recipe in RECIPES


def of_cells(
    name: str,
    title: str,
    source: str,
    recipe: str,
    paper: str,
    heads: tuple[int, ...],
    columns: tuple[Column, ...],
    **other: Any,
) -> Table:
    """Return a table of cells; one with several numbers of heads draws them."""
    return Table(
        name=name,
        title=title,
        source=source,
        shows="cells",
        recipe=recipe,
        paper=paper,
        heads=heads,
        columns=columns,
        figures=HEADS if len(heads) > 1 else TRAINED,
        **other,
    )
