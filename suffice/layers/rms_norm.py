"""The norm of Llama-like models."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
