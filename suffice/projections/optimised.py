"""No W_V: the values are columns of x."""

from __future__ import annotations

from dataclasses import dataclass

from suffice.projections.base import Projections


@dataclass(frozen=True)
class Optimised(Projections):
    """Q = x W_Q, K = x W_K, V = x: W_O alone transforms the values.

    Two linear maps in a row (W_V, then W_O) are one; head i takes the i-th column slice of x.
    With one head it is as expressive as Standard; with more heads W_V could have mixed features
    across slices, which this cannot.

    Cost: 3 (d^2 + d) parameters with biases; 6 T d^2 FLOPs.
    Source: Hosseini et al. 2024, arXiv:2403.01643, definition 2. Differs: the paper's text slices
    rows of V where the shapes need columns.
    """

    learns_values = False
