"""Multi-query attention."""

from __future__ import annotations

from suffice.presets.gqa import gqa
from suffice.spec import AttentionSpec


def mqa(
    d_model: int, num_heads: int, *, causal: bool = False, bias: bool = True, dropout: float = 0.0
) -> AttentionSpec:
    """Multi-query attention: all query heads share one key/value head.

    Choose it for the smallest streaming state of a softmax over every key. Not where quality
    decides: gqa keeps more of it at a state in between.

    Args:
        d_model: features.
        num_heads: query heads.
        causal: no look-ahead.
        bias: biases on the maps.
        dropout: on the weights, while training.

    Cost: 2 (d^2 + d) + 2 (d^2 + d) / h parameters; 4 (1 + 1 / h) T d^2 + 4 T^2 d FLOPs; state
    2 d / h numbers per token.
    Source: Shazeer 2019, arXiv:1911.02150, section 3.
    """
    return gqa(d_model, num_heads, num_kv_heads=1, causal=causal, bias=bias, dropout=dropout)
