"""Grouped-query attention."""

from __future__ import annotations

from dataclasses import replace

from suffice.encoders import HeadRMS
from suffice.errors import ConfigError
from suffice.presets.paper import standard
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


def qk_norm(
    d_model: int,
    num_heads: int,
    *,
    num_kv_heads: int | None = None,
    eps: float = 1e-6,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """QK-norm: each head's queries and keys divided by their root mean square, times a gain.

    Choose it for trainings that are long or at high rates, where scores of plain attention grow
    until single keys take all weight. Not to save anything: it costs as much as standard attention.

    Args:
        d_model: features.
        num_heads: query heads.
        num_kv_heads: key/value heads, a divisor of num_heads; None = as many as query heads.
        eps: keeps a query or key of zeros finite.
        causal: no look-ahead.
        bias: biases on the maps; Qwen3 has none.
        dropout: on the weights, while training.

    Cost: 4 (d^2 + d) + 2 d / h parameters; 8 T d^2 + 4 T^2 d FLOPs; state 2 d numbers per token.
    Source: Henry et al. 2020, arXiv:2010.04245; in the form of Yang et al. 2025,
        arXiv:2505.09388, section 2 (Qwen3).
    """
    base = standard(d_model, num_heads, causal=causal, bias=bias, dropout=dropout)
    return replace(base, num_kv_heads=num_kv_heads, norm=HeadRMS(eps))
