"""Learned queries, keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from suffice.projections.base import Projections


@dataclass(frozen=True)
class Standard(Projections):
    """Q = x W_Q, K = x W_K, V = x W_V and an output map W_O.

    The multi-head attention of every Transformer; the yardstick of all others here.

    Cost: 4 (d^2 + d) parameters with biases; 8 T d^2 FLOPs.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2. No difference.
    """
