"""Dropout whose mask does not depend on how many processes share a batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError


class Dropout(nn.Module):
    """Zero each element with probability `p` while training and scale the others by 1 / (1 - p).

    The mask is drawn for the whole global batch and this process takes its own rows, so one
    process and many draw the same mask from the same seed. Four elements share one draw of 64
    bits, 16 each, because torch draws one element at a time on a CPU. So the probability is the
    multiple of 2^-16 nearest to `p` (at least one), and the scale is its.

    Args:
        p: probability of zeroing an element, 0 <= p < 1.

    Shapes:
        x: [B, ...] -> [B, ...]

    Raises:
        ConfigError: if p is outside [0, 1).
    """

    rows: tuple[int, int] | None = None  # (offset, total) of this process in the global batch

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ConfigError(f"dropout={p} is not a probability below 1; give 0 <= dropout < 1.")
        self.p = p
        self.zeroed = max(1, min(round(p * 2**16), 2**16 - 1))  # of the 2^16 values of a draw

    def forward(self, x: Tensor) -> Tensor:
        """Return x with elements dropped while training, x itself otherwise."""
        if not self.training or self.p == 0.0:
            return x
        offset, total = self.rows or (0, x.shape[0])
        shape = (total, *x.shape[1:])
        size = math.prod(shape)
        draws = torch.randint(-(2**63), 2**63 - 1, (-(-size // 4),), device=x.device)
        draws = draws.view(torch.int16)[:size].view(shape)
        mask = torch.empty(shape, dtype=x.dtype, device=x.device)
        torch.ge(draws, self.zeroed - 2**15, out=mask)
        mask.mul_(2**16 / (2**16 - self.zeroed))
        return x * mask[offset : offset + x.shape[0]]

    def extra_repr(self) -> str:
        """Show the probability in the printed module."""
        return f"p={self.p}"
