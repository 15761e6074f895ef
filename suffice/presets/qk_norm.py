"""Attention with normalised queries and keys."""

from __future__ import annotations

from dataclasses import replace

from suffice.norms import HeadRMS
from suffice.presets.standard import standard
from suffice.spec import AttentionSpec


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
