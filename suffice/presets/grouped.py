"""Mechanisms of released language models: shared and latent heads, QK-norm, differences."""

from __future__ import annotations

from dataclasses import replace

from suffice.combine import Differential, Exclusive
from suffice.encoders import MLA, Forgetting, HeadRMS
from suffice.errors import ConfigError
from suffice.patterns import Causal, Full
from suffice.positions import Rope
from suffice.presets.paper import standard
from suffice.presets.sparse import checked
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

    Use it when the KV cache dominates memory. Encoders keep no cache, so they save parameters but
    not compute.

    Args:
        num_kv_heads: key/value heads, a divisor of num_heads; None: half of the heads, or one if
            their number is odd.

    Cost: 2 (1 + g) (d^2 + d) parameters for g = num_kv_heads / num_heads (biases of K and V
    shrink too); 4 (1 + g) T d^2 + 4 T^2 d FLOPs; KV cache 2 g d numbers per token.
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

    Choose it for the smallest KV cache of a softmax over every key. Not where quality
    decides: gqa keeps more of it, with a cache in between.

    Cost: 2 (d^2 + d) + 2 (d^2 + d) / h parameters; 4 (1 + 1 / h) T d^2 + 4 T^2 d FLOPs; KV cache
    2 d / h numbers per token.
    Source: Shazeer 2019, arXiv:1911.02150, section 3.
    """
    return gqa(d_model, num_heads, num_kv_heads=1, causal=causal, bias=bias, dropout=dropout)


def cla(
    d_model: int,
    num_heads: int,
    *,
    num_kv_heads: int | None = None,
    group: int = 2,
    layer: int = 0,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Cross-layer attention: neighbouring layers read the keys and values of the first of them.

    The others have maps of queries and of the output alone. Choose it for language models whose
    KV cache is the bottleneck, with shared heads or instead of them: every second layer shares,
    and half of the cache is left. Not to read less: each layer still attends to all the keys.

    Args:
        num_kv_heads: key/value heads, a divisor of num_heads; None: one for each query head.
        group: neighbouring layers that read one cache.
        layer: number of the layer in its model, from 0; `schedule` numbers the blocks.

    Cost: 4 (d^2 + d) parameters and 8 T d^2 + 4 T^2 d FLOPs in the first layer of a group; 2 (d^2 +
        d) and 4 T d^2 + 4 T^2 d in the others, which cache nothing.
    Source: Brandon et al. 2024, arXiv:2405.12981, section 3.

    Raises:
        ConfigError: for a group below 1.
    """
    base = standard(d_model, num_heads, causal=causal, bias=bias, dropout=dropout)
    first = layer // checked("group", group) * group
    return replace(base, num_kv_heads=num_kv_heads, shares=None if layer == first else first)


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
        num_kv_heads: key/value heads, a divisor of num_heads; None: one for each query head.
        eps: number that keeps a query or key of zeros finite.
        bias: bias terms in the projections; Qwen3 has none.

    Cost: 4 (d^2 + d) + 2 d / h parameters; 8 T d^2 + 4 T^2 d FLOPs; KV cache 2 d numbers per token.
    Source: Henry et al. 2020, arXiv:2010.04245; in the form of Yang et al. 2025,
        arXiv:2505.09388, section 2 (Qwen3).
    """
    base = standard(d_model, num_heads, causal=causal, bias=bias, dropout=dropout)
    return replace(base, num_kv_heads=num_kv_heads, norm=HeadRMS(eps))


def xsa(
    d_model: int,
    num_heads: int,
    *,
    num_kv_heads: int | None = None,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Exclusive self-attention: each head's output without its part along the token's own value.

    Choose it where heads spend their weight on the token itself, whose value the residual stream
    holds already. Not to save anything: it costs what standard attention costs.

    Args:
        num_kv_heads: key/value heads, a divisor of num_heads; None: one for each query head.

    Cost: 4 (d^2 + d) parameters; 8 T d^2 + 4 T^2 d FLOPs of products; KV cache 2 d numbers per
        token.
    Source: exclusive self-attention, arXiv:2603.09078.
    """
    base = standard(d_model, num_heads, causal=causal, bias=bias, dropout=dropout)
    return replace(base, num_kv_heads=num_kv_heads, combine=Exclusive())


def forgetting(
    d_model: int,
    num_heads: int,
    *,
    num_kv_heads: int | None = None,
    causal: bool = True,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Forgetting attention: a softmax whose logits fade by learned forget gates, without positions.

    Choose it for causal language models that are to read further than they were trained, or where
    rotary positions blur what is near. Not for a cache with sinks or of few bits.

    Args:
        num_kv_heads: key/value heads, a divisor of num_heads; None: one for each query head.
        causal: no look-ahead; True alone is legal.

    Cost: 4 (d^2 + d) + d h + h parameters; 8 T d^2 + 2 T d h + 4 T^2 d + 6 T^2 h FLOPs; KV cache
        2 d + h numbers per token.
    Source: Lin et al. 2025, arXiv:2503.02130, section 3. Left out: the paper's Pro block, which has
    shifted keys and values, QK-norm and an output gate.
    """
    if not causal:
        raise ConfigError(
            "forgetting sums gates from a key to a later query, so it has no form that looks "
            "ahead; leave out causal=False."
        )
    base = standard(d_model, num_heads, causal=True, bias=bias, dropout=dropout)
    return replace(base, num_kv_heads=num_kv_heads, encoder=Forgetting())


def mla(
    d_model: int,
    num_heads: int,
    *,
    rank: int | None = None,
    rotary_dim: int | None = None,
    query_rank: int | None = None,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Multi-head latent attention: all heads' keys and values are made of one cached latent.

    Choose it for language models with many heads whose KV cache is the bottleneck: its size does
    not depend on the number of heads. Rotary positions rotate a part of each query and one key that
    all heads share. Not for encoders, which cache nothing.

    Args:
        rank: width of the latent; None: four times the width of a head, at most d_model.
        rotary_dim: width of the rotary part; None: half the width of a head, made even.
        query_rank: width of the queries' own latent; None: they are one map of x.
        bias: bias terms in the projections; the paper's model has none.

    Cost: d (r + p) + 2 r d + d (d + h p) + d^2 parameters without biases for a rank r, a rotary
        width p and h heads; KV cache r + p numbers per token.
    Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1 (rank 512 and rotary width 64 for
        heads 128 wide).
    """
    width = max(d_model // num_heads, 1)
    encoder = MLA(
        rank=min(4 * width, d_model) if rank is None else rank,
        rotary_dim=2 * max(width // 4, 1) if rotary_dim is None else rotary_dim,
        query_rank=query_rank,
    )
    base = standard(d_model, num_heads, causal=causal, bias=bias, dropout=dropout)
    return replace(base, encoder=encoder, position=Rope())


def differential(
    d_model: int,
    num_heads: int,
    *,
    num_kv_heads: int | None = None,
    layer: int = 0,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Differential attention: each head subtracts one softmax from another.

    Choose it for language models of long texts, where most of a softmax's weight falls on what is
    irrelevant: both maps share it, and it cancels. With half of Standard's heads it has the same
    parameters and work on the maps.

    Args:
        d_model: features; divisible by 2 num_heads.
        num_heads: heads, each a pair of maps.
        num_kv_heads: key/value heads; None: num_heads.
        layer: number of the layer in its model, from 0, which sets the initial lambda; `schedule`
            numbers the blocks.
        bias: bias terms in the projections; the paper's model has none.

    Cost: 4 (d^2 + d) + 3 d / h parameters for h heads; 8 T d^2 + 6 T^2 d FLOPs; KV cache 2 d
        numbers per token.
    Source: Ye et al. 2024, arXiv:2410.05258, section 2.1.
    """
    return AttentionSpec(
        d_model=d_model,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        pattern=Causal() if causal else Full(),
        combine=Differential(depth=layer),
        bias=bias,
        dropout=dropout,
    )
