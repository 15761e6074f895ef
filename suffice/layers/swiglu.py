"""The feed-forward half of a block of Llama-like models."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.layers.dropout import Dropout
from suffice.ops.linear import Linear


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), three linear maps, Glorot-uniform, biases zero.

    Args:
        d_model: features in and out.
        width: features between.
        dropout: probability, after the last map.
        bias: biases on the maps.
        device: where the parameters live.
        dtype: of the parameters.

    Shapes:
        x: [..., d_model] -> [..., d_model]

    Raises:
        ConfigError: if dropout is no probability below 1.

    Example:
        >>> sum(p.numel() for p in SwiGLU(8, 16, bias=False).parameters())
        384

    Source: Shazeer 2020, arXiv:2002.05202, equation 6. Differs: biases, if asked for.
    """

    def __init__(
        self,
        d_model: int,
        width: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.gate = Linear(d_model, width, bias=bias, device=device, dtype=dtype)
        self.up = Linear(d_model, width, bias=bias, device=device, dtype=dtype)
        self.down = Linear(width, d_model, bias=bias, device=device, dtype=dtype)
        self.dropout = Dropout(dropout)
        for linear in (self.gate, self.up, self.down):
            nn.init.xavier_uniform_(linear.weight)
            if bias:
                nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the map of each position."""
        return self.dropout(self.down(F.silu(self.gate(x)) * self.up(x)))
