"""How positions enter a layer."""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.axis import Axis


class Position(Axis, family="position"):
    """Base of the positions that act inside a layer, on queries and keys but not on values."""

    absolute: bool = True
    """True if the result depends on positions at all."""

    rotates: bool = False
    """True if queries and keys are turned by their positions."""

    biases: bool = False
    """True if the position adds something to the products of queries and keys."""

    relative: bool = False
    """True if what it adds depends on the distance of query and key only."""

    def conflicts(self, head_dim: int) -> list[str]:  # noqa: ARG002 - most values fit any width
        """Return what is wrong with this head width, a sentence each."""
        return []

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return queries or keys [B, H, T, D] turned by their positions ([T] or [B, T])."""
        return self.turn(x, self.turns(positions, x.shape[-1], x.dtype))

    def turns(self, positions: Tensor, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return what `turn` needs of the positions, alike for all queries and keys of a model.

        Called only where `rotates`.
        """
        raise NotImplementedError(f"{type(self).__name__} turns nothing.")

    def turn(self, x: Tensor, turns: tuple[Tensor, ...]) -> Tensor:
        """Return queries or keys [B, H, T, D] turned; called only with what `turns` gave."""
        raise NotImplementedError(f"{type(self).__name__} turns nothing.")

    def bias(self, num_heads: int, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return what is added to the scaled products [..., H, T, S], float32 or better.

        Called only where `biases`. The positions broadcast to [..., 1, T, S], as [..., 1, T, 1]
        and [..., 1, 1, S].
        """
        raise NotImplementedError(f"{type(self).__name__} adds nothing to the products.")
