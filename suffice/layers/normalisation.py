"""The norms a block can be built with, by name."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from suffice.errors import unknown
from suffice.ops.rms_norm import rms_norm


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * w over the last axis; no mean is taken away, no bias added.

    Inside it is fp32 or better whatever the dtype of x, and rounds once.

    Args:
        d_model: features.
        eps: keeps a row of zeros finite.
        device: where w lives.
        dtype: of w.

    Shapes:
        x: [..., d_model] -> [..., d_model]

    Example:
        >>> RMSNorm(2)(torch.tensor([1.0, -7.0])).detach()
        tensor([ 0.2000, -1.4000])

    Source: Zhang and Sennrich 2019, arXiv:1910.07467, equation 4. Differs: eps.
    """

    def __init__(
        self,
        d_model: int,
        *,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model, device=device, dtype=dtype))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of each position."""
        return rms_norm(x, self.weight, self.eps)

    def extra_repr(self) -> str:
        """Show the sizes in the printed module."""
        return f"{self.weight.shape[0]}, eps={self.eps}"


NORMALISATIONS = ("layer", "rms")


def normalisation(
    name: str,
    d_model: int,
    *,
    eps: float,
    bias: bool = True,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """Return a norm over d_model features.

    Args:
        name: "layer" or "rms".
        d_model: features.
        eps: of the norm.
        bias: whether a layer norm has one; an RMS norm never has.
        device: where the parameters live.
        dtype: of the parameters.

    Raises:
        ConfigError: for an unknown name.
    """
    if name not in NORMALISATIONS:
        raise unknown("normalisation", name, NORMALISATIONS)
    if name == "rms":
        return RMSNorm(d_model, eps=eps, device=device, dtype=dtype)
    return nn.LayerNorm(d_model, eps=eps, bias=bias, device=device, dtype=dtype)
