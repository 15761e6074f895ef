"""Rotary positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from suffice.errors import ConfigError
from suffice.positions.base import Position


@dataclass(frozen=True)
class Rope(Position):
    """Turn feature pair (i, i + D/2) of a query or key at position p by p * theta^(-2i/D) radians.

    Products then depend on the distance of query and key only. The layout is half-split, as
    Llama-family models have it. Angles, sines and cosines are fp32 or better whatever the dtype
    of x: they are computed from the positions at each call and are no part of the module.

    Args:
        theta: base of the wavelengths, > 1.

    Raises:
        ConfigError: if theta is not above 1.

    Cost: 6 D operations per position and head; no parameters.
    Example:
        >>> x = torch.tensor([1.0, 0.0]).expand(1, 1, 3, 2)
        >>> Rope().rotate(x, torch.arange(3))[0, 0, :, 0]
        tensor([ 1.0000,  0.5403, -0.4161])

    Source: Su et al. 2021, arXiv:2104.09864, equation 15. Differs: pairs (i, i + D/2), not
    (2i, 2i + 1), a fixed permutation of the features.
    """

    rotates = True

    theta: float = 10_000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.theta > 1.0:
            raise ConfigError(f"Rope(theta={self.theta}): give a base above 1, such as 10000.")

    def conflicts(self, head_dim: int) -> list[str]:
        """Refuse odd head widths: features turn in pairs."""
        if head_dim % 2 == 0:
            return []
        return [f"Rope turns features in pairs: head_dim={head_dim} is odd; make it even."]

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return x [B, H, T, D] turned by positions [T] or [B, T]."""
        half = x.shape[-1] // 2
        exact = torch.promote_types(x.dtype, torch.float32)
        steps = torch.arange(half, device=x.device, dtype=torch.float64) / half
        # float64 frequencies: at position 10^5 an fp32 frequency is already off by 0.006 radians
        angles = positions.to(torch.float64)[..., None] * self.theta**-steps
        angles = angles.unsqueeze(-3)  # one for all heads
        cos, sin = angles.cos().to(exact), angles.sin().to(exact)
        left, right = x[..., :half].to(exact), x[..., half:].to(exact)
        turned = torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)
        return turned.to(x.dtype)
