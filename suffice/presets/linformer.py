"""Linformer's attention."""

from __future__ import annotations

from dataclasses import replace

from suffice.mixing import LowRank
from suffice.presets.sizes import checked
from suffice.presets.standard import standard
from suffice.spec import AttentionSpec


def linformer(
    d_model: int,
    num_heads: int,
    *,
    length: int,
    rank: int | None = None,
    shared: bool = True,
    per_head: bool = False,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Linformer: queries attend to a fixed number of learned sums of keys and of values.

    Choose it for long input of a fixed length that is read in both directions, as encoders do:
    time and memory grow with the length instead of its square. It cannot generate: the sums are
    over the whole input, so `causal` is refused, and so is input longer than `length`.

    Args:
        d_model: features.
        num_heads: query heads.
        length: the longest input, tokens.
        rank: sums that are attended to; None = a quarter of length, at least 1, as the paper's 128
            for 512 tokens.
        shared: one map for keys and for values instead of one each.
        per_head: maps of its own for each head instead of the same for all.
        causal: no look-ahead; refused.
        bias: biases on the maps of features; the maps along the sequence have none.
        dropout: on the weights, while training.

    Cost: 4 (d^2 + d) + r l parameters; 8 T d^2 + 8 T r d FLOPs.
    Source: Wang et al. 2020, arXiv:2006.04768, equation 7; sharing as in its section 4. Differs:
        the paper's sharing across layers is left out: each layer has maps of its own.
    """
    base = standard(d_model, num_heads, causal=causal, bias=bias, dropout=dropout)
    if rank is None:
        rank = max(checked("length", length) // 4, 1)
    return replace(base, mixing=LowRank(length, rank, shared=shared, per_head=per_head))
