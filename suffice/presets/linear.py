"""The Linear Transformer's attention."""

from __future__ import annotations

from dataclasses import replace

from suffice.kernels import Elu
from suffice.presets.standard import standard
from suffice.spec import AttentionSpec


def linear(
    d_model: int,
    num_heads: int,
    *,
    causal: bool = False,
    bias: bool = True,
) -> AttentionSpec:
    """Linear Transformer: weights are products of elu(q) + 1 and elu(k) + 1.

    Choose it for long input and for streaming: time grows with the length instead of its square,
    and a state has one size. It weighs keys more smoothly than a softmax, so not where one exact
    key has to be found; below some hundred tokens a softmax is as fast.

    Args:
        d_model: features.
        num_heads: query heads.
        causal: no look-ahead.
        bias: biases on the maps.

    Cost: 4 (d^2 + d) parameters; 8 T d^2 + about 4 T d (d / h + 8) FLOPs, causal
        8 T d^2 + about 4 T d (d / h + 72); state d (d / h + 1) numbers in all.
    Source: Katharopoulos et al. 2020, arXiv:2006.16236, equations 7 and 9.
    """
    return replace(standard(d_model, num_heads, causal=causal, bias=bias), kernel=Elu())
