"""Grouped-query attention."""

from __future__ import annotations

from dataclasses import replace

from suffice.errors import ConfigError
from suffice.presets.standard import standard
from suffice.spec import AttentionSpec


def gqa(
    d_model: int,
    num_heads: int,
    *,
    num_kv_heads: int | None = None,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Grouped-query attention: several query heads share one key/value head.

    Choose it for language models whose state is what costs. Not for encoders, which keep no state:
    it saves parameters there, but no work on the pairs.

    Args:
        d_model: features.
        num_heads: query heads.
        num_kv_heads: key/value heads, a divisor of num_heads; None = half of the heads, or one if
            their number is odd.
        causal: no look-ahead.
        bias: biases on the maps.
        dropout: on the weights, while training.

    Cost: 2 (1 + g) (d^2 + d) parameters for g = num_kv_heads / num_heads (biases of K and V
    shrink too); 4 (1 + g) T d^2 + 4 T^2 d FLOPs; state 2 g d numbers per token.
    Source: Ainslie et al. 2023, arXiv:2305.13245, section 2.2.

    Raises:
        ConfigError: with one query head, which has nothing to share.
    """
    if num_kv_heads is None:
        if num_heads < 2:
            raise ConfigError(
                f"gqa shares key/value heads among query heads; num_heads={num_heads} has nothing "
                "to share. Give two heads or more, or use standard."
            )
        num_kv_heads = num_heads // 2 if num_heads % 2 == 0 else 1
    base = standard(d_model, num_heads, causal=causal, bias=bias, dropout=dropout)
    return replace(base, num_kv_heads=num_kv_heads)
