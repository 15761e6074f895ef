"""The feed-forward half of a block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suffice.errors import unknown
from suffice.layers.dropout import Dropout
from suffice.ops.linear import Linear

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_tanh": partial(nn.GELU, approximate="tanh"),
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
}


class MLP(nn.Module):
    """Two linear maps with an activation between, Glorot-uniform, biases zero.

    Args:
        d_model: features in and out.
        width: features between.
        activation: "gelu", "gelu_tanh" (an approximation, GPT-2's), "relu" or "tanh".
        dropout: probability, after the activation and after the second map.
        inner_dropout: False to drop after the second map only.
        bias: biases on the maps.
        device: where the parameters live.
        dtype: of the parameters.

    Shapes:
        x: [..., d_model] -> [..., d_model]

    Raises:
        ConfigError: for an unknown activation.
    """

    def __init__(
        self,
        d_model: int,
        width: int,
        *,
        activation: str = "gelu",
        dropout: float = 0.0,
        inner_dropout: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise unknown("activation", activation, ACTIVATIONS)
        self.up = Linear(d_model, width, bias=bias, device=device, dtype=dtype)
        self.activation = ACTIVATIONS[activation]()
        self.down = Linear(width, d_model, bias=bias, device=device, dtype=dtype)
        self.inner_dropout = Dropout(dropout if inner_dropout else 0.0)
        self.dropout = Dropout(dropout)
        for linear in (self.up, self.down):
            nn.init.xavier_uniform_(linear.weight)
            if bias:
                nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the map of each position."""
        return self.dropout(self.down(self.inner_dropout(self.activation(self.up(x)))))


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
