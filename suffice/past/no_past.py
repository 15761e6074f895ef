"""Nothing beside what the pattern shows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from suffice.past.base import Past


@dataclass(frozen=True)
class NoPast(Past):
    """A layer reads what its pattern shows and nothing else, as nearly all do."""

    reads = False

    def parameters(self, num_heads: int) -> int:  # noqa: ARG002 - nothing is learned
        """Count none."""
        return 0

    def flops(self, queries: int, num_heads: int, num_kv_heads: int, head_dim: int) -> int:  # noqa: ARG002
        """Count none."""
        return 0

    def state_fixed(self, num_kv_heads: int, head_dim: int) -> int:  # noqa: ARG002
        """Count none."""
        return 0

    def build(
        self,
        *,
        num_heads: int,  # noqa: ARG002 - nothing to build
        num_kv_heads: int,  # noqa: ARG002
        device: torch.device | str | None,  # noqa: ARG002
        dtype: torch.dtype | None,  # noqa: ARG002
    ) -> nn.Module | None:
        """Return nothing."""
        return None
