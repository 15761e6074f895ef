"""Queries and keys of any size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from suffice.norms.base import Norm


@dataclass(frozen=True)
class NoNorm(Norm):
    """Queries and keys as their maps give them.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1. No difference.
    """

    norms = False

    def parameters(self, head_dim: int) -> int:  # noqa: ARG002 - nothing is learned
        """Count none."""
        return 0

    def build(
        self,
        head_dim: int,  # noqa: ARG002 - nothing to build
        *,
        rms: type[nn.Module],  # noqa: ARG002
        device: torch.device | str | None,  # noqa: ARG002
        dtype: torch.dtype | None,  # noqa: ARG002
    ) -> nn.Module:
        """Return what gives its input back."""
        return nn.Identity()
