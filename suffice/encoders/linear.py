"""How x becomes queries, keys and values: which of the three maps are learned.

A map that is not learned takes the first columns of its input as they are, so head g of K and V
is a column slice of x; nothing is copied. Letters: B batch, T positions, M model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from suffice.records import Axis


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
    d_source: int
    q: int
    kv: int


class Encoder(Axis, family="encoder"):
    """Base of the encoder: Q and the output map O are always learned."""

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
            maps["k_proj"] = (widths.d_source, widths.kv)
        if self.learns_values:
            maps["v_proj"] = (widths.d_source, widths.kv)
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


@dataclass(frozen=True)
class Standard(Encoder):
    """Q = x W_Q, K = x W_K, V = x W_V and an output map W_O.

    The multi-head attention of every Transformer; the yardstick of all others here.

    Cost: 4 (d^2 + d) parameters with biases; 8 T d^2 FLOPs.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2. No difference.
    """


@dataclass(frozen=True)
class Optimised(Encoder):
    """Q = x W_Q, K = x W_K, V = x: W_O alone transforms the values.

    Two linear maps in a row (W_V, then W_O) are one; head i takes the i-th column slice of x.
    With one head it is as expressive as Standard; with more heads W_V could have mixed features
    across slices, which this cannot.

    Cost: 3 (d^2 + d) parameters with biases; 6 T d^2 FLOPs.
    Source: Hosseini et al. 2024, arXiv:2403.01643, definition 2. Differs: the paper's text slices
    rows of V where the shapes need columns.
    """

    learns_values = False


@dataclass(frozen=True)
class Efficient(Encoder):
    """Q = x W_Q, K = V = x, and an output map W_O.

    Keys and values are the same tensor, so a streaming state is x alone: half of Standard's. With
    one head it is as expressive as Standard; it equals multi-head attention whose W_K and W_V are
    the identity.

    Cost: 2 (d^2 + d) parameters with biases; 4 T d^2 FLOPs.
    Source: Hosseini et al. 2024, arXiv:2403.01643, definition 3 (one wide head in version 1 of
    the paper, slices from version 2). Differs: columns where the paper's text says rows.
    """

    learns_keys = False
    learns_values = False
    shares = True


@dataclass(frozen=True)
class Latent(Encoder):
    """Q = x W_Q, K = V = c = x W_C, and an output map W_O.

    A streaming state is c alone, num_kv_heads * head_dim numbers a token. With num_kv_heads=1 every
    query head reads the same c, whose width head_dim is then free to choose: at d_model nothing
    Standard attention without rotary positions computes is lost, below it less state is kept. Give
    scale= where a trained layer's products are to keep theirs.

    Cost: d (H + 1) r + r d H parameters without biases for one c of width r; state r.
    Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1, with the maps from the latent back to
    keys and values taken into W_Q and W_O. Differs: no separate rotary keys.
    """

    learns_values = False
    shares = True

    def build(
        self,
        widths: Widths,
        *,
        bias: bool,
        linear: type[nn.Linear],
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> dict[str, nn.Module]:
        """Return the modules; v_proj is none of its own."""
        made = super().build(widths, bias=bias, linear=linear, device=device, dtype=dtype)
        return made | {"v_proj": nn.Identity()}

    def read(self, k_proj: nn.Module, v_proj: nn.Module, source: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return c twice."""
        latent = k_proj(source)
        return latent, latent


__all__ = ["Columns", "Efficient", "Encoder", "Latent", "Optimised", "Standard", "Widths"]
