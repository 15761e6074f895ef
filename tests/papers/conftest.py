from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

import suffice
from suffice.measure.plan import Plan
from suffice.papers.results import Key
from suffice.recipes import Recipe, recipe


def quick(name: str = "digits_vit", *, scale: str = "paper", epochs: int = 1) -> Recipe:
    """The digits' recipe with one epoch; workers are told what differs."""
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


@pytest.fixture
def path_of_workers(monkeypatch):
    """Workers import the package that is tested."""
    here = str(Path(suffice.__file__).resolve().parents[1])
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", here if not before else f"{here}{os.pathsep}{before}")


class Told:
    """A watch that remembers."""

    def __init__(self) -> None:
        self.begun: list[Key] = []
        self.ended: list[Key] = []
        self.gone: list[Key] = []
        self.steps: list[float] = []

    def begin(self, number: int, key: Key) -> None:
        self.begun.append(key)

    def step(self, number: int, done: int, total: int) -> None:
        self.steps.append(done / total)

    def end(self, number: int, key: Key) -> None:
        self.ended.append(key)

    def lost(self, key: Key) -> None:
        self.gone.append(key)


def timeless(cells):
    """Cells without what a clock measured."""
    kept = []
    for cell in cells:
        epochs = tuple({**epoch, "seconds": 0.0} for epoch in cell.epochs)
        kept.append(dataclasses.replace(cell, epochs=epochs, seconds_per_epoch=0.0))
    return sorted(kept, key=lambda cell: cell.key)
