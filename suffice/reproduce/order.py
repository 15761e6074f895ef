"""What a worker is told: which cells of which recipe, where to write them."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suffice.errors import ConfigError
from suffice.measure.decode import decode
from suffice.measure.plan import Plan
from suffice.recipes import Recipe, recipe
from suffice.recipes.own_data import of_user, path_of


@dataclass(frozen=True, kw_only=True)
class Order:
    """The part of a plan that a cell depends on; plain data, so that any process can take it.

    Args:
        recipe: name.
        scale: "paper" or "small".
        data: where files of the user's lie that it reads, None for the task's own.
        training: fields of the training that differ from the recipe's.
        device: "cpu" or "cuda".
        folder: where cells are written.
        threads: of each training.
    """

    recipe: str
    scale: str
    data: str | None
    training: dict[str, Any]
    device: str
    folder: str
    threads: int

    @property
    def made(self) -> Recipe:
        """The recipe itself."""
        found = recipe(self.recipe, scale=self.scale)
        if self.data is not None:
            found = of_user(found, self.data)
        return dataclasses.replace(
            found, training=dataclasses.replace(found.training, **self.training)
        )

    def plan(self, mechanism: str, num_heads: int) -> Plan:
        """Return the plan that has the cells of one mechanism with these heads."""
        return Plan(
            recipe=self.made,
            mechanisms=(mechanism,),
            heads=(num_heads,),
            seeds=1,
            baseline=mechanism,
            device=self.device,
        )

    def to_line(self) -> str:
        """Return one line of JSON."""
        return json.dumps(dataclasses.asdict(self)) + "\n"

    @staticmethod
    def from_line(line: str) -> Order:
        """Rebuild what `to_line` gave."""
        return decode(Order, json.loads(line), where="the order")


def order_of(plan: Plan, folder: Path, threads: int) -> Order:
    """Return what workers are told about a plan.

    Raises:
        ConfigError: if the plan's recipe is not one by name, so that no worker could make it.
    """
    given = plan.recipe
    named = recipe(given.name, scale=given.scale)
    asked, usual = dataclasses.asdict(given.training), dataclasses.asdict(named.training)
    changed = {key: value for key, value in asked.items() if value != usual[key]}
    found = Order(
        recipe=given.name,
        scale=given.scale,
        data=None if path_of(given) == path_of(named) else path_of(given),
        training=changed,
        device=plan.device,
        folder=str(folder.absolute()),
        threads=threads,
    )
    if found.made != given:
        raise ConfigError(
            f"recipe {given.name} differs from the one of that name in more than its training; "
            "workers make recipes by name."
        )
    return found
