from __future__ import annotations

import dataclasses

import pytest

from suffice.comparison.plan import Plan
from suffice.train.recipes import Recipe, recipe


def quick(name: str = "digits_vit", *, scale: str = "paper", epochs: int = 1) -> Recipe:
    """The digits' recipe with one epoch."""
    found = recipe(name, scale=scale)
    return dataclasses.replace(found, training=dataclasses.replace(found.training, epochs=epochs))


@pytest.fixture
def plan() -> Plan:
    return Plan(
        recipe=quick(),
        mechanisms=("standard", "efficient"),
        heads=(4,),
        seeds=1,
        baseline="standard",
    )


class RecordingDisplay:
    """Progress of workers that remembers the cells."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended = 0
        self.told: list[str] = []

    def begin(self, worker: int, cell: str) -> None:
        self.begun.append(cell)

    def update(self, worker: int, share: float) -> None:
        pass

    def end(self, worker: int, *, finished: bool) -> None:
        self.ended += finished

    def tell(self, text: str) -> None:
        self.told.append(text)

    def finish(self, text: str) -> None:
        pass


def timeless(cells):
    """Cells without what a clock measured."""
    kept = []
    for cell in cells:
        epochs = tuple({**epoch, "seconds": 0.0, "cpu_seconds": 0.0} for epoch in cell.epochs)
        kept.append(dataclasses.replace(cell, epochs=epochs, seconds_per_epoch=0.0))
    return sorted(kept, key=lambda cell: cell.key)
