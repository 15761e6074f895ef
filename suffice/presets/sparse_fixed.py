"""The fixed attention of the Sparse Transformer."""

from __future__ import annotations

from dataclasses import replace

from suffice.patterns import Block, Fixed
from suffice.presets.factorised import factorised
from suffice.presets.sizes import checked, stride_for
from suffice.presets.standard import standard
from suffice.spec import AttentionSpec


def sparse_fixed(
    d_model: int,
    num_heads: int,
    *,
    stride: int | None = None,
    tail: int | None = None,
    per_head: bool = False,
    length: int | None = None,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Fixed sparse attention: the own stretch, and the last keys of every stretch.

    Choose it for long text: the ends of the stretches gather what their stretch says and hand it
    on, whatever the distance, at a cost of T sqrt(T). For input with a period take sparse_strided.

    Args:
        d_model: features.
        num_heads: query heads.
        stride: length of a stretch, positions. None = the square root of length, at least 2;
            without a length 128.
        tail: how many last keys of each stretch are seen by all. None = a quarter of the stride,
            at least 1: 32 for the paper's 128.
        per_head: False = every head sees the union; True = the first half of the heads has the
            own stretch, the others the tails. Causal, these see nothing before the first tail.
        length: the input that sizes not given are made for, tokens; longer input is served too.
        causal: no look-ahead, as in the paper.
        bias: biases on the maps.
        dropout: on the weights, while training.

    Raises:
        ConfigError: for per_head with a single head.

    Cost: 4 (d^2 + d) parameters; causal, about 8 T d^2 + 4 T (l + c T / l) d / 2 FLOPs of visible
        pairs for stride l and tail c, without per_head; state 2 d numbers per token.
    Source: Child et al. 2019, arXiv:1904.10509, section 4.2, fixed attention. It is causal, ours
        also looks ahead unless told; all heads have one tail, where the paper's may take different
        parts of the stretch.
    """
    stride = stride_for(length, 128) if stride is None else checked("stride", stride)
    tail = max(1, stride // 4) if tail is None else tail
    base = standard(d_model, num_heads, bias=bias, dropout=dropout)
    return replace(
        base,
        pattern=factorised(
            Block(stride), Fixed(stride, tail), num_heads, per_head=per_head, causal=causal
        ),
    )
