"""What a recipe's training needs on some GPUs: what fits, how fast it is at best, what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from suffice.planning.asked import Asked
from suffice.planning.choose import Choice, Parts, choose, fewest
from suffice.planning.devices import Device
from suffice.planning.ways import Ways
from suffice.planning.work import Work

USABLE = 0.9  # of the memory; the rest is the driver's, the exchange's, and gaps between tensors
HOUR, DAY = 3600.0, 86400.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answer.

    Args:
        work: what is trained.
        device: on what.
        gpus: how many.
        memory: bytes of each.
        numbers: parameters of the model.
        choices: layouts, the best of each kind, the recommended one first.
        parts: of the recommended one, traced as it is.
        fewest: GPUs from which on something fits; None = never.
        steps: of the optimiser; None = not known.
        price: of a GPU for an hour; None = not known.
        reached: share of the roofline that is counted on.
    """

    work: Work
    device: Device
    gpus: int
    memory: int
    numbers: int
    choices: tuple[Choice, ...]
    parts: Parts
    fewest: int | None
    steps: int | None
    price: float | None
    reached: float

    @property
    def best(self) -> Choice:
        """The recommended layout."""
        return self.choices[0]

    @property
    def usable(self) -> int:
        """Bytes that tensors may take."""
        return int(self.memory * USABLE)

    @property
    def flops(self) -> float:
        """FLOPs of a step on all GPUs, those of computing anew included."""
        return self.best.time.flops * self.gpus

    def seconds(self, choice: Choice | None = None) -> tuple[float, float]:
        """Return seconds of a step: if all exchange happens meanwhile, and if none does."""
        low, high = (choice or self.best).time.bounds
        return low / self.reached, high / self.reached

    def tokens_per_second(self, choice: Choice | None = None) -> tuple[float, float]:
        """Return tokens a second of all GPUs, the least first."""
        tokens = self.work.rows * self.work.tokens
        low, high = self.seconds(choice)
        return tokens / high, tokens / low

    def days(self) -> tuple[float, float] | None:
        """Return days of the whole training; None = its steps are not known."""
        if self.steps is None:
            return None
        low, high = self.seconds()
        return low * self.steps / DAY, high * self.steps / DAY

    def cost(self) -> tuple[float, float] | None:
        """Return the price of the whole training; None = the price or the steps are not known."""
        days = self.days()
        if days is None or self.price is None:
            return None
        low, high = (each * DAY / HOUR * self.gpus * self.price for each in days)
        return low, high


def plan(work: Work, device: Device, asked: Asked | None = None, **words: Any) -> Plan:
    """Return what a training needs.

    Args:
        work: what is trained.
        device: one GPU.
        asked: the rest; None = what `words` say.
        **words: of `Asked`.

    Raises:
        ConfigError: if something is not legal, or the recipe's training does not have it.
        StateError: in one of several processes.

    Example:
        >>> from suffice.planning import device, plan, work
        >>> found = plan(work("digits_vit"), device("l4"))
        >>> found.best.fits, found.fewest, found.best.way.rows
        (True, 1, 64)
    """
    asked = asked or Asked(**words)
    asked.refuse(work, device)
    memory = asked.memory or device.memory
    ways = Ways(work, device, asked.gpus, asked.network)
    choices, parts = choose(ways, asked, usable := int(memory * USABLE))
    return Plan(
        work=work,
        device=device,
        gpus=asked.gpus,
        memory=memory,
        numbers=ways.alone(1, work.checkpointing).numbers,
        choices=choices,
        parts=parts,
        fewest=fewest(ways, asked, usable),
        steps=work.all_steps(asked.examples),
        price=asked.price,
        reached=asked.reached,
    )
