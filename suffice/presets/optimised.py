"""Optimised Attention."""

from __future__ import annotations

from dataclasses import replace

from suffice.presets.standard import standard
from suffice.projections import Optimised
from suffice.spec import AttentionSpec


def optimised(
    d_model: int, num_heads: int, *, causal: bool = False, bias: bool = True, dropout: float = 0.0
) -> AttentionSpec:
    """Optimised Attention: no W_V, each head reads a column slice of x as its values.

    Choose it for a quarter fewer attention parameters at hardly any change of quality. Not for a
    smaller streaming state: keys are still learned, so x is kept beside them; take efficient.

    Args:
        d_model: features.
        num_heads: query heads; head h reads the h-th slice of columns.
        causal: no look-ahead.
        bias: biases on the maps.
        dropout: on the weights, while training.

    Cost: 3 (d^2 + d) parameters; 6 T d^2 + 4 T^2 d FLOPs; state 2 d numbers per token.
    Source: Hosseini et al. 2024, arXiv:2403.01643, definition 2.
    """
    base = standard(d_model, num_heads, causal=causal, bias=bias, dropout=dropout)
    return replace(base, projections=Optimised())
