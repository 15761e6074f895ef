"""Values as they are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suffice.mixing.base import Mixing
from suffice.mixing.rows import Rows


class Untouched(nn.Module):
    """Return the keys and the values."""

    def forward(self, k: Tensor, v: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return k and v."""
        return k, v


@dataclass(frozen=True)
class NoMixing(Mixing):
    """The kernel reads each value as it is, as in every attention but a few.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2. No difference.
    """

    mixes = False

    def parameters(self, num_kv_heads: int, *, causal: bool = False) -> int:  # noqa: ARG002
        """Count none."""
        return 0

    def flops(
        self,
        keys: int,  # noqa: ARG002 - nothing is computed
        num_kv_heads: int,  # noqa: ARG002
        value_width: int,  # noqa: ARG002
        *,
        causal: bool = False,  # noqa: ARG002
    ) -> int:
        """Count none."""
        return 0

    def build(
        self,
        *,
        num_kv_heads: int,  # noqa: ARG002 - nothing to build
        causal: bool,  # noqa: ARG002
        device: torch.device | str | None,  # noqa: ARG002
        dtype: torch.dtype | None,  # noqa: ARG002
    ) -> nn.Module:
        """Return a module that returns the values."""
        return Untouched()
