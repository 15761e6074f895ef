"""Multi-head attention."""

from __future__ import annotations

from suffice.patterns import Causal, Full
from suffice.spec import AttentionSpec


def standard(
    d_model: int, num_heads: int, *, causal: bool = False, bias: bool = True, dropout: float = 0.0
) -> AttentionSpec:
    """Multi-head attention: learned queries, keys and values, softmax over every key.

    Choose it as the yardstick, and where quality decides and cost does not. Not for long input:
    time grows with the square of the length, and a streaming state with every token.

    Args:
        d_model: features.
        num_heads: query heads, each with keys and values of its own.
        causal: no look-ahead.
        bias: biases on the maps.
        dropout: on the weights, while training.

    Cost: 4 (d^2 + d) parameters; 8 T d^2 + 4 T^2 d FLOPs; state 2 d numbers per token.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.
    """
    return AttentionSpec(
        d_model=d_model,
        num_heads=num_heads,
        pattern=Causal() if causal else Full(),
        bias=bias,
        dropout=dropout,
    )
