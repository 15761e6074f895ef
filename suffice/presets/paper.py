"""Multi-head attention, and the mechanisms of Hosseini et al. 2024."""

from __future__ import annotations

from dataclasses import replace

from suffice.encoders import Efficient, Optimised
from suffice.mixing import Alignment, ToeplitzAlignment
from suffice.patterns import Causal, Full
from suffice.spec import AttentionSpec


def standard(
    d_model: int, num_heads: int, *, causal: bool = False, bias: bool = True, dropout: float = 0.0
) -> AttentionSpec:
    """Multi-head attention: learned queries, keys and values, softmax over every key.

    Choose it as the yardstick, and where quality decides and cost does not. Not for long input:
    time grows with the square of the length, and a KV cache with every token.

    Args:
        d_model: features.
        num_heads: query heads.
        causal: no look-ahead.
        bias: bias terms in the projections.
        dropout: probability of dropping a weight, while training.

    Cost: 4 (d^2 + d) parameters; 8 T d^2 + 4 T^2 d FLOPs; KV cache 2 d numbers per token.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.
    """
    return AttentionSpec(
        d_model=d_model,
        num_heads=num_heads,
        pattern=Causal() if causal else Full(),
        bias=bias,
        dropout=dropout,
    )


def optimised(
    d_model: int, num_heads: int, *, causal: bool = False, bias: bool = True, dropout: float = 0.0
) -> AttentionSpec:
    """Optimised Attention: no W_V, each head reads a column slice of x as its values.

    Choose it for a quarter fewer attention parameters at hardly any change of quality. Not for a
    smaller KV cache: keys are still learned, so x is kept as well; take efficient.

    Args:
        num_heads: query heads; head h reads the h-th slice of columns.

    Cost: 3 (d^2 + d) parameters; 6 T d^2 + 4 T^2 d FLOPs; KV cache 2 d numbers per token.
    Source: Hosseini et al. 2024, arXiv:2403.01643, definition 2.
    """
    base = standard(d_model, num_heads, causal=causal, bias=bias, dropout=dropout)
    return replace(base, encoder=Optimised())


def efficient(
    d_model: int, num_heads: int, *, causal: bool = False, bias: bool = True, dropout: float = 0.0
) -> AttentionSpec:
    """Efficient Attention: no W_K and no W_V, keys and values are column slices of x.

    Choose it for half the attention parameters and half the KV cache (with rotary positions the
    rotated keys are cached as well, as much as standard attention caches). num_heads=1 is version 1
    of the paper, one head as wide as x; more heads are the slices of version 2. Not for very narrow
    heads: the keys and values of a head are its slice of x and nothing else.

    Args:
        num_heads: query heads; head h reads the h-th slice of columns.

    Cost: 2 (d^2 + d) parameters; 4 T d^2 + 4 T^2 d FLOPs; KV cache d numbers per token.
    Source: Hosseini et al. 2024, arXiv:2403.01643, definition 3.
    """
    base = standard(d_model, num_heads, causal=causal, bias=bias, dropout=dropout)
    return replace(base, encoder=Efficient())


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
        num_heads: query heads; 1 is version 1 of the paper.
        length: the longest input, tokens.
        bias: bias terms in the projections and on W_A, as in the paper's parameter counts.
        init: initialisation of W_A, see `Alignment`.

    Cost: 2 (d^2 + d) + l^2 + l parameters; 4 T d^2 + 6 T^2 d FLOPs; KV cache 2 d numbers per token.
    Source: Hosseini et al. 2024, arXiv:2403.01643, definition 4.
    """
    base = efficient(d_model, num_heads, causal=causal, bias=bias, dropout=dropout)
    return replace(base, mixing=Alignment(length, bias=bias, init=init))


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
        width: positions back that are mixed, its own included; if not causal, ahead as well.
        bias: bias terms in the projections and on W_A.
        init: initialisation of W_A, see `ToeplitzAlignment`.

    Cost: 2 (d^2 + d) + w + 1 parameters (2 w if not causal); 4 T d^2 + 4 T^2 d FLOPs and about
        2 T (32 + w) d for the band; KV cache 2 d numbers per token.
    Source: Hosseini et al. 2024, arXiv:2403.01643, definition 4. Differs: W_A is a band of equal
        diagonals, the paper's has a weight for each pair of positions up to a fixed length.
    """
    base = efficient(d_model, num_heads, causal=causal, bias=bias, dropout=dropout)
    return replace(base, mixing=ToeplitzAlignment(width, bias=bias, init=init))
