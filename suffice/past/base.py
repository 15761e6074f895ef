"""What a layer reads of the past that its pattern leaves out.

Letters: B batch, H query heads, G key/value heads, T positions, D and E head widths.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import nn

from suffice.axis import Axis


class Past(Axis, ABC, family="past"):
    """Base of what is read of the past."""

    reads: bool = True
    """True if something is read."""

    segment: int | None = None
    """Positions of a segment, within which the pattern stays; None = it is free."""

    @abstractmethod
    def parameters(self, num_heads: int) -> int:
        """Count the learned numbers."""

    @abstractmethod
    def flops(self, queries: int, num_heads: int, num_kv_heads: int, head_dim: int) -> int:
        """Count the FLOPs (2 per multiply-add) of the products on a sequence of T positions."""

    @abstractmethod
    def state_fixed(self, num_kv_heads: int, head_dim: int) -> int:
        """Count the numbers a streaming state keeps whatever the length."""

    @abstractmethod
    def build(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> nn.Module | None:
        """Return the module that reads it, None if there is nothing to read."""
