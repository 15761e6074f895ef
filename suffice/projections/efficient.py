"""No W_K and no W_V: keys and values are columns of x."""

from __future__ import annotations

from dataclasses import dataclass

from suffice.projections.base import Projections


@dataclass(frozen=True)
class Efficient(Projections):
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
