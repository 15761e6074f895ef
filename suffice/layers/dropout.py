"""Dropout whose mask does not depend on how many processes share a batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from suffice.errors import ConfigError


class Dropout(nn.Module):
    """Zero each element with probability `p` while training and scale the others by 1 / (1 - p).

    The mask is drawn for the whole global batch and this process takes its own rows, so one
    process and many draw the same mask from the same seed.

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

    def forward(self, x: Tensor) -> Tensor:
        """Return x with elements dropped while training, x itself otherwise."""
        if not self.training or self.p == 0.0:
            return x
        offset, total = self.rows or (0, x.shape[0])
        mask = torch.empty(total, *x.shape[1:], dtype=x.dtype, device=x.device)
        mask.bernoulli_(1.0 - self.p).div_(1.0 - self.p)
        return x * mask[offset : offset + x.shape[0]]

    def extra_repr(self) -> str:
        """Show the probability in the printed module."""
        return f"p={self.p}"
