"""The strided attention of the Sparse Transformer."""

from __future__ import annotations

from dataclasses import replace

from suffice.patterns import Strided, Window
from suffice.presets.factorised import factorised
from suffice.presets.sizes import stride_for
from suffice.presets.standard import standard
from suffice.spec import AttentionSpec


def sparse_strided(
    d_model: int,
    num_heads: int,
    *,
    stride: int | None = None,
    per_head: bool = False,
    length: int | None = None,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Strided sparse attention: the nearest keys, and every stride-th key of the whole input.

    Choose it for long input with a period, such as the rows of an image or bars of music, with the
    period as stride: any two positions meet in two layers at a cost of T sqrt(T). For text take
    sparse_fixed.

    Args:
        d_model: features.
        num_heads: query heads.
        stride: positions, of the window too. None = the square root of length, at least 2; without
            a length 128.
        per_head: False = every head sees the union; True = the first half of the heads has the
            window, the others the stride.
        length: the input that sizes not given are made for, tokens; longer input is served too.
        causal: no look-ahead, as in the paper.
        bias: biases on the maps.
        dropout: on the weights, while training.

    Raises:
        ConfigError: for per_head with a single head.

    Cost: 4 (d^2 + d) parameters; causal, about 8 T d^2 + 4 T (l + T / 2 l) d FLOPs of visible
        pairs for stride l, without per_head; state 2 d numbers per token.
    Source: Child et al. 2019, arXiv:1904.10509, section 4.2, strided attention. The paper's window
        also holds the key at distance l, which here the stride brings; it is causal, ours also
        looks ahead unless told.
    """
    stride = stride_for(length, 128) if stride is None else stride
    base = standard(d_model, num_heads, bias=bias, dropout=dropout)
    return replace(
        base,
        pattern=factorised(
            Window(stride), Strided(stride), num_heads, per_head=per_head, causal=causal
        ),
    )
