"""Random feature attention."""

from __future__ import annotations

from dataclasses import replace

from suffice.kernels import Rfa
from suffice.presets.standard import standard
from suffice.spec import AttentionSpec


def rfa(
    d_model: int,
    num_heads: int,
    *,
    features: int = 64,
    seed: int = 0,
    causal: bool = False,
    bias: bool = True,
) -> AttentionSpec:
    """Random feature attention: a softmax of cosines, estimated by sines and cosines.

    Choose it like performer, where the norms of queries and keys should not matter. Its estimates
    have both signs, so with few features some queries are estimated badly; performer's are never
    negative.

    Args:
        d_model: features.
        num_heads: query heads.
        features: random features of a head, even: a sine and a cosine for each frequency.
        seed: of the frequencies.
        causal: no look-ahead.
        bias: biases on the maps.

    Cost: 4 (d^2 + d) parameters; 8 T d^2 + about 6 T d F FLOPs for F features, causal more by
        2 T h C (F + d / h) for chunks of C positions; state h F (d / h + 1) numbers in all.
    Source: Peng et al. 2021, arXiv:2103.02143, equations 3 to 5. Differs: without its gate.
    """
    base = standard(d_model, num_heads, causal=causal, bias=bias)
    return replace(base, kernel=Rfa(features, seed))
