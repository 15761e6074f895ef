"""Efficient Attention."""

from __future__ import annotations

from dataclasses import replace

from suffice.presets.standard import standard
from suffice.projections import Efficient
from suffice.spec import AttentionSpec


def efficient(
    d_model: int, num_heads: int, *, causal: bool = False, bias: bool = True, dropout: float = 0.0
) -> AttentionSpec:
    """Efficient Attention: no W_K and no W_V, keys and values are column slices of x.

    Choose it for half the attention parameters and half the streaming state (with rotary positions
    the turned keys are kept as well, and the state is that of standard attention). num_heads=1 is
    version 1 of the paper, one head as wide as x; more heads are the slices of version 2. Not
    for very narrow heads: the keys and values of a head are its slice of x and nothing else.

    Args:
        d_model: features.
        num_heads: query heads; head h reads the h-th slice of columns.
        causal: no look-ahead.
        bias: biases on the maps.
        dropout: on the weights, while training.

    Cost: 2 (d^2 + d) parameters; 4 T d^2 + 4 T^2 d FLOPs; state d numbers per token.
    Source: Hosseini et al. 2024, arXiv:2403.01643, definition 3.
    """
    base = standard(d_model, num_heads, causal=causal, bias=bias, dropout=dropout)
    return replace(base, projections=Efficient())
