"""Every query sees every key."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from suffice.patterns.base import Pattern


@dataclass(frozen=True)
class Full(Pattern):
    """Every query sees every key, before and after itself.

    The pattern of encoders and of cross-attention.

    Cost: T * S pairs.
    Example:
        >>> Full().mask(1, 3).tolist()
        [[True, True, True]]

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2. No difference.
    """

    dense = True
    relative = True
    crosses = True

    def allowed(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return True everywhere."""
        shape = torch.broadcast_shapes(q_positions.shape, k_positions.shape)
        return q_positions.new_ones((), dtype=torch.bool).expand(shape)

    def bounds(self, q_first: Tensor, q_last: Tensor, k_first: Tensor, k_last: Tensor) -> Tensor:
        """Return 2 everywhere."""
        shape = torch.broadcast_shapes(q_first.shape, q_last.shape, k_first.shape, k_last.shape)
        return torch.full(shape, 2, dtype=torch.int8, device=q_first.device)

    def every(self, step: int, first: int) -> Pattern:  # noqa: ARG002 - no position matters
        """Return Full."""
        return self

    def pairs(self, queries: int, keys: int) -> int:
        """Count T * S pairs."""
        return queries * keys
