"""Weights are the softmax of the scaled products."""

from __future__ import annotations

from dataclasses import dataclass

from suffice.kernels.base import Kernel


@dataclass(frozen=True)
class Softmax(Kernel):
    """w_ts = exp(s_ts) / sum over allowed s' of exp(s_ts'), with s_ts = scale * q_t . k_s.

    A query that may see no key has weights 0 and output 0. Computed in fp32 or better whatever
    the input dtype.

    Cost: O(T * S) multiply-adds of two products, 4 T S D FLOPs for a head of width D.
    Source: Vaswani et al. 2017, arXiv:1706.03762, equation 1. Differs: the empty row is defined.
    """
