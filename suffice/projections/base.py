"""How x becomes queries, keys and values: which of the three maps are learned.

A map that is not learned takes the first columns of its input as they are, so head g of K and V
is a column slice of x; nothing is copied. Letters: B batch, T positions, M model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from suffice.axis import Axis


class Columns(nn.Module):
    """The first `width` columns of the input, a view: a projection without parameters.

    Shapes:
        x: [B, T, M] -> [B, T, width]
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """Return the view."""
        return x[..., : self.width]

    def extra_repr(self) -> str:
        """Show the width in the printed module."""
        return f"width={self.width}"


@dataclass(frozen=True, kw_only=True)
class Widths:
    """The widths a layer's four maps connect, in features."""

    d_model: int
    d_memory: int
    q: int
    kv: int


class Projections(Axis, family="projections"):
    """Base of the projections: Q and the output map O are always learned."""

    learns_keys: ClassVar[bool] = True
    """True if keys are W_K x, False if they are columns of x."""

    learns_values: ClassVar[bool] = True
    """True if values are W_V x, False if they are columns of x, or the keys."""

    shares: ClassVar[bool] = False
    """True if keys, before they turn, and values are one tensor."""

    def shapes(self, widths: Widths) -> dict[str, tuple[int, int]]:
        """Return (inputs, outputs) of each learned map by the name of its module."""
        maps = {"q_proj": (widths.d_model, widths.q)}
        if self.learns_keys:
            maps["k_proj"] = (widths.d_memory, widths.kv)
        if self.learns_values:
            maps["v_proj"] = (widths.d_memory, widths.kv)
        return maps | {"o_proj": (widths.q, widths.d_model)}

    def parameters(self, widths: Widths, bias: bool) -> int:
        """Count the learned numbers."""
        return sum(i * o + o * bias for i, o in self.shapes(widths).values())

    def build(
        self,
        widths: Widths,
        *,
        bias: bool,
        linear: type[nn.Linear],
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> dict[str, nn.Module]:
        """Return the modules q_proj, k_proj, v_proj and o_proj, Glorot-uniform, biases zero."""
        maps: dict[str, nn.Module] = {"k_proj": Columns(widths.kv), "v_proj": Columns(widths.kv)}
        for name, (inputs, outputs) in self.shapes(widths).items():
            maps[name] = linear(inputs, outputs, bias=bias, device=device, dtype=dtype)
            nn.init.xavier_uniform_(maps[name].weight)
            if bias:
                nn.init.zeros_(maps[name].bias)
        return maps

    def read(self, k_proj: nn.Module, v_proj: nn.Module, source: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values [B, S, G D] of what a layer attends to."""
        return k_proj(source), v_proj(source)
