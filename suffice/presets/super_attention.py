"""Super Attention."""

from __future__ import annotations

from dataclasses import replace

from suffice.mixing import Alignment
from suffice.presets.efficient import efficient
from suffice.spec import AttentionSpec


def super_attention(
    d_model: int,
    num_heads: int,
    *,
    length: int,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
    init: str = "glorot",
) -> AttentionSpec:
    """Super Attention: Efficient Attention whose values a learned map W_A mixes along the sequence.

    Choose it where the length is fixed and quality decides: images, short texts. In a causal
    layer W_A is lower triangular by construction. Not for long or open-ended input: W_A grows with
    the square of `length`, and what is longer is refused.

    Args:
        d_model: features.
        num_heads: query heads; 1 is version 1 of the paper.
        length: the longest input, tokens.
        causal: no look-ahead.
        bias: biases on the maps and on W_A, as in the paper's parameter counts.
        dropout: on the weights, while training.
        init: of W_A, see `Alignment`.

    Cost: 2 (d^2 + d) + l^2 + l parameters; 4 T d^2 + 6 T^2 d FLOPs; state 2 d numbers per token.
    Source: Hosseini et al. 2024, arXiv:2403.01643, definition 4.
    """
    base = efficient(d_model, num_heads, causal=causal, bias=bias, dropout=dropout)
    return replace(base, mixing=Alignment(length, bias=bias, init=init))
