"""Infini-attention."""

from __future__ import annotations

from dataclasses import replace

from suffice.errors import ConfigError
from suffice.past import Infini
from suffice.patterns import Block, Causal
from suffice.presets.standard import standard
from suffice.spec import AttentionSpec


def infini(
    d_model: int,
    num_heads: int,
    *,
    segment: int = 256,
    delta: bool = True,
    causal: bool = True,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Infini-attention: a softmax within segments, and a memory of one size of all before them.

    Choose it for language models of endless text: what is kept when streaming with
    `Rolling(segment)` has one size, and each head learns how much of it to hear. What lies in an
    earlier segment is heard blurred; for exact recall keep a window or everything. It has no form
    that looks ahead.

    Args:
        d_model: features.
        num_heads: query heads.
        segment: tokens of a segment.
        delta: with the delta rule: a segment adds to the memory what it does not tell already.
        causal: no look-ahead; True alone is legal.
        bias: biases on the maps.
        dropout: on the weights within a segment, while training.

    Cost: 4 (d^2 + d) + h parameters; 8 T d^2 + 4 T N d FLOPs for segments of N and about
        4 T d^2 / h for the memory; state d (d / h + 1 + 2 N) numbers and 2 d per token, of which
        the last N are read.
    Source: Munkhdalai et al. 2024, arXiv:2404.07143, equations 2 to 10.

    Raises:
        ConfigError: for causal=False, or a segment below 1.
    """
    if not causal:
        raise ConfigError(
            "infini keeps a memory of what came before, so it has no form that looks ahead; leave "
            "out causal=False."
        )
    base = standard(d_model, num_heads, causal=True, bias=bias, dropout=dropout)
    past = Infini(segment, delta)
    return replace(base, pattern=Block(segment) & Causal(), past=past)
