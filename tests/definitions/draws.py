"""What random-feature kernels are tested with: many draws of omega, and how their error falls."""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.kernels import Kernel
from suffice.testing import normal


def omegas(kernels: list[Kernel], width: int) -> Tensor:
    """[draws, rows, width] in float64, from the state of the maps these kernels build."""
    maps = (kernel.build(head_dim=width, scale=1.0, device="cpu") for kernel in kernels)
    return torch.stack([m.state_dict()["omega"].double() for m in maps])


def pairs(width: int, *, count: int = 5, size: float = 0.8, seed: int = 3) -> tuple[Tensor, Tensor]:
    """Queries and keys [count, width] of this norm."""
    rows = normal(2, count, width, seed=seed)
    q, k = size * rows / rows.norm(dim=-1, keepdim=True)
    return q, k


def slopes(errors: list[Tensor], sizes: list[int]) -> Tensor:
    """Slope of log RMS error over log size, for each of 12 groups of draws.

    errors: for each size, [draws, pairs].
    """
    steps = [e.reshape(12, -1).square().mean(dim=1).sqrt().log() for e in errors]
    x = torch.tensor(sizes, dtype=torch.float64).log()
    x = x - x.mean()
    return (torch.stack(steps, dim=1) * x).sum(dim=1) / x.square().sum()


def advantage(error: Tensor, other: Tensor) -> float:
    """How much smaller the squared error is than the other's, in standard errors."""
    a, b = error.square().mean(dim=1), other.square().mean(dim=1)
    spread = (a.var() / len(a) + b.var() / len(b)).sqrt()
    return float((b.mean() - a.mean()) / spread)
