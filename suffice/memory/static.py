"""A memory of a fixed size."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from suffice.errors import ConfigError
from suffice.memory.base import Held, Memory, Store
from suffice.memory.dynamic import GrowingStore


@dataclass(frozen=True)
class Static(Memory):
    """Everything is kept, up to a length that is made room for at once.

    Choose it where memory must be known beforehand. Everything comes back exactly; one position too
    many is refused before anything is changed.

    Args:
        length: positions, >= 1.

    Raises:
        ConfigError: if length < 1.
    """

    length: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 1:
            raise ConfigError(f"Static(length={self.length}) holds nothing; give at least 1.")

    @property
    def capacity(self) -> int:  # type: ignore[override]
        """The length."""
        return self.length

    def build(self, unit: int = 1) -> Store:
        """Return an empty store."""
        return FixedStore(-(-self.length // unit))

    @classmethod
    def samples(cls) -> tuple[Memory, ...]:
        """Return one that the tests do not fill."""
        return (cls(64),)


class FixedStore(GrowingStore):
    """Buffers of one size.

    Args:
        capacity: positions.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(least=0)
        self.capacity = capacity

    def append(self, *parts: Tensor) -> Held:
        """Keep positions and return all."""
        self.check_room(parts[0].shape[2])
        return super().append(*parts)

    def check_room(self, positions: int) -> None:
        """Refuse positions beyond the capacity."""
        if self.length + positions > self.capacity:
            raise ConfigError(
                f"{positions} more positions do not fit beside {self.length} in "
                f"Static(length={self.capacity}); give a longer one, or reset the state."
            )

    def _room(self, end: int) -> int:  # noqa: ARG002 - always the same
        return self.capacity
