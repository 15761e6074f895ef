"""What is asked of a plan, and what of it a recipe's training does not have."""

from __future__ import annotations

import math
from dataclasses import dataclass

from suffice.errors import ConfigError
from suffice.planning.devices import Device
from suffice.planning.work import Work


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The hardware, and what is decided already.

    Args:
        gpus: how many.
        memory: bytes of each; None = the device's.
        shard: cut the weights between them, or not; None = whichever is faster and fits.
        checkpointing: compute blocks anew in the backward pass, or not; None = likewise.
        accumulate: micro-batches of a step; None = the fewest that fit.
        examples: rows of the data to learn from, where the recipe counts epochs.
        network: bytes a second to other nodes for each GPU; None = the device's.
        price: of a GPU for an hour; None = not known.
        reached: share of the roofline to count on.

    Raises:
        ConfigError: if a number is not legal.

    Example:
        >>> Asked(gpus=0, price=-1.0)
        Traceback (most recent call last):
        suffice.errors.ConfigError: gpus=0; give an integer >= 1. price=-1.0; give a number above 0.
    """

    gpus: int = 1
    memory: int | None = None
    shard: bool | None = None
    checkpointing: bool | None = None
    accumulate: int | None = None
    examples: int | None = None
    network: float | None = None
    price: float | None = None
    reached: float = 1.0

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name in ("gpus", "accumulate", "memory")}
        rates = {name: getattr(self, name) for name in ("network", "price")}
        wrong = [
            f"{k}={v}; give an integer >= 1." for k, v in counts.items() if v is not None and v < 1
        ]
        wrong += [
            f"{k}={v}; give a number above 0."
            for k, v in rates.items()
            if v is not None and not 0.0 < v < math.inf
        ]
        if not 0.0 < self.reached <= 1.0:
            wrong.append(f"reached={self.reached}; give a share above 0, up to 1.")
        if wrong:
            raise ConfigError(" ".join(wrong))

    def refuse(self, work: Work, device: Device) -> None:
        """Refuse what does not fit the recipe or the device.

        Raises:
            ConfigError: with the reason.
        """
        if self.gpus * (self.accumulate or 1) > work.rows:
            micro = f" in {self.accumulate} micro-batches" if self.accumulate else ""
            raise ConfigError(
                f"{work.name} learns from {work.rows} rows a step, which leaves some of "
                f"{self.gpus} GPUs without one{micro}; give fewer."
            )
        if not work.free:
            self._refuse_fixed(work)
        if self.shard and self.gpus == 1:
            raise ConfigError("one GPU has nobody to share weights with; leave shard out.")
        if self.gpus > device.node and self.network is None and device.network is None:
            raise ConfigError(
                f"how fast {self.gpus} {device.name} exchange is not known beyond the "
                f"{device.node} of a node; give the network's bytes a second for each GPU."
            )

    def _refuse_fixed(self, work: Work) -> None:
        said = {
            "shard": self.shard,
            "checkpointing": self.checkpointing,
            "accumulate": (self.accumulate or 1) > 1,
        }
        if named := [name for name, wanted in said.items() if wanted]:
            raise ConfigError(
                f"{', '.join(named)}: the training of {work.name} has no such setting, only "
                "recipes of language models do; leave it out."
            )
