"""Linear biases."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from suffice.positions.base import Position


@dataclass(frozen=True)
class Alibi(Position):
    """Add -m_h * |q - k| to the scaled product of a query at q and a key at k in head h.

    With H = 2^n heads m_h = 2^(-8h/H), h = 1..H. Other numbers of heads take the slopes of the
    next lower power of two, P, and then every second slope of 2 P heads from the first.

    Choose it for language models that are to read further than they were trained: what is far is
    weighed less, and nothing is learned. Softmax only, self-attention only.

    Cost: no parameters; one addition for each pair and head.
    Example:
        >>> Alibi().bias(2, torch.tensor([[2]]), torch.tensor([[0, 1, 2]]))[0]
        tensor([[-0.1250, -0.0625, -0.0000]], dtype=torch.float64)

    Source: Press et al. 2021, arXiv:2108.12409, section 3. Differs: the paper's language models
    only look back; a key ahead counts by its distance too.
    """

    biases = True
    relative = True

    def bias(self, num_heads: int, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return -m_h * |q - k|, float64: [..., H, T, S]."""
        slopes = torch.tensor(_slopes(num_heads), dtype=torch.float64, device=q_positions.device)
        return -slopes[:, None, None] * (q_positions - k_positions).abs()


def _slopes(num_heads: int) -> list[float]:
    """Return the slope of each head."""
    power = 1 << (num_heads.bit_length() - 1)
    own = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    between = [2.0 ** (-4 * h / power) for h in range(1, 2 * power + 1, 2)]
    return own + between[: num_heads - power]
