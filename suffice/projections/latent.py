"""One learned map for keys and values together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suffice.projections.base import Projections, Widths


@dataclass(frozen=True)
class Latent(Projections):
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
