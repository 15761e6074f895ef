"""The Performer's attention."""

from __future__ import annotations

from dataclasses import replace

from suffice.kernels import Favor
from suffice.presets.standard import standard
from suffice.spec import AttentionSpec


def performer(
    d_model: int,
    num_heads: int,
    *,
    features: int = 256,
    seed: int = 0,
    causal: bool = False,
    bias: bool = True,
) -> AttentionSpec:
    """Performer: the weights of a softmax, estimated by positive random features (FAVOR+).

    Choose it where time must grow with the length and the weights should stay near those of a
    softmax, as with a model that was trained with one. More features estimate better and cost
    more; linear is the cheaper of the two when training from scratch.

    Args:
        d_model: features.
        num_heads: query heads.
        features: random features of a head; the error of the weights falls with their root.
        seed: of the random features.
        causal: no look-ahead.
        bias: biases on the maps.

    Cost: 4 (d^2 + d) parameters; 8 T d^2 + about 8 T d F FLOPs for F features, causal more by
        2 T h C (F + d / h) for chunks of C positions; state h (F (d / h + 1) + 1) numbers in all.
    Source: Choromanski et al. 2020, arXiv:2009.14794, lemma 1 and section 2.4.
    """
    base = standard(d_model, num_heads, causal=causal, bias=bias)
    return replace(base, kernel=Favor(features, seed))
