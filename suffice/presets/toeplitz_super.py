"""Super Attention for input of any length."""

from __future__ import annotations

from dataclasses import replace

from suffice.mixing import ToeplitzAlignment
from suffice.presets.efficient import efficient
from suffice.spec import AttentionSpec


def toeplitz_super(
    d_model: int,
    num_heads: int,
    *,
    width: int = 4,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
    init: str = "identity",
) -> AttentionSpec:
    """Super Attention whose W_A is a band of equal diagonals: any length, a handful of weights.

    Choose it for language models and wherever the length is not fixed: each value is mixed with
    its nearest neighbours by the same weights everywhere, so nothing depends on where in the
    input something stands, and longer input than in training is read alike. It starts as
    Efficient Attention. Where the length is fixed and places matter (images), super_attention
    mixes all positions.

    Args:
        d_model: features.
        num_heads: query heads.
        width: positions back that are mixed, the own included; as many ahead, if not causal.
        causal: no look-ahead.
        bias: biases on the maps and on W_A.
        dropout: on the weights, while training.
        init: of W_A, see `ToeplitzAlignment`.

    Cost: 2 (d^2 + d) + w + 1 parameters (2 w if not causal); 4 T d^2 + 4 T^2 d FLOPs and about
        2 T (32 + w) d for the band; state 2 d numbers per token.
    Source: Hosseini et al. 2024, arXiv:2403.01643, definition 4. Differs: W_A is a band of equal
        diagonals, the paper's has a weight for each pair of positions up to a fixed length.
    """
    base = efficient(d_model, num_heads, causal=causal, bias=bias, dropout=dropout)
    return replace(base, mixing=ToeplitzAlignment(width, bias=bias, init=init))
