"""How positions enter a layer."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from suffice.axis import Axis


class Position(Axis, ABC, family="position"):
    """Base of the positions that act inside a layer, on queries and keys but not on values."""

    absolute: bool = True
    """True if the result depends on positions at all."""

    def conflicts(self, head_dim: int) -> list[str]:  # noqa: ARG002 - most values fit any width
        """Return what is wrong with this head width, a sentence each."""
        return []

    @abstractmethod
    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return queries or keys [B, H, T, D] turned by their positions ([T] or [B, T])."""
