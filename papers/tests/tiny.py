"""A table of the digits' recipe with cells that were not trained but drawn."""

from __future__ import annotations

from pathlib import Path

from suffice.comparison.results import Cell, write_cell
from suffice.train.recipes import recipe
from suffice_papers.folder import claim
from suffice_papers.published import Published
from suffice_papers.request import TableRequest, request_cells
from suffice_papers.tables import CLASSES, Table
from tests.comparison.synthetic import make_cell, make_results

RESULTS = Path("papers", "suffice_papers", "results")  # below a checkout
MECHANISMS = ("standard", "efficient", "super_attention")
TINY = Table(
    name="tiny",
    title="Digits",
    source="v2 table 5",
    shows="cells",
    recipe="digits_vit",
    paper="mnist",
    mechanisms=MECHANISMS,
    heads=(1, 4),
    seeds=2,
    columns=CLASSES,
    figures=("curves", "heads"),
)


def cells(*, seeds: int = 2, heads=(1, 4), shift: float = 0.0) -> list[Cell]:
    """Cells whose accuracy falls from mechanism to mechanism."""
    return [
        make_cell(
            name,
            number,
            seed,
            test_accuracy=0.97 - 0.01 * place + 0.002 * seed + shift,
            parameters=100 - place,
            epochs=3,
        )
        for number in heads
        for place, name in enumerate(MECHANISMS)
        for seed in range(seeds)
    ]


def fill(folder: Path, found: list[Cell]) -> TableRequest:
    """Write cells into a working folder as if they had been trained there."""
    request = request_cells(TINY, out=folder)
    claim(folder, request.plan, command="suffice reproduce tiny", started="2025", threads=1)
    for cell in found:
        write_cell(folder, cell)
    return request.again()


def kept(found: list[Cell], **changes) -> Published:
    """Published results of these cells."""
    from suffice.comparison.plan import describe

    given = {
        "scale": "paper",
        "threads": 1,
        "recipe": describe(recipe("digits_vit")),
        "results": make_results(found),
    }
    return Published(**{**given, **changes})
