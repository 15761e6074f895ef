"""What queries and keys are divided by, after their maps and before positions turn them.

Letters: B batch, T positions, H heads, D head width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import nn

from suffice.axis import Axis


class Norm(Axis, ABC, family="norm"):
    """Base of the norms of queries and keys."""

    norms: ClassVar[bool] = True
    """True if anything is divided: then no factor passes from the map of the keys to that of the
    queries, and keys that were the values no longer are."""

    @abstractmethod
    def parameters(self, head_dim: int) -> int:
        """Count the learned numbers, of queries and keys together."""

    @abstractmethod
    def build(
        self,
        head_dim: int,
        *,
        rms: type[nn.Module],
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> nn.Module:
        """Return a module [B, T, H, D] -> [B, T, H, D]; queries and keys have one each.

        Args:
            head_dim: D.
            rms: the norm by root mean squares, made as rms(D, eps=..., device=..., dtype=...).
            device: where its parameters live.
            dtype: of its parameters.
        """
