"""Sliding-window attention."""

from __future__ import annotations

from dataclasses import replace

from suffice.patterns import Causal, Window
from suffice.presets.sizes import window_for
from suffice.presets.standard import standard
from suffice.spec import AttentionSpec


def sliding_window(
    d_model: int,
    num_heads: int,
    *,
    window: int | None = None,
    length: int | None = None,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Sliding-window attention: each position sees its neighbours only.

    Choose it for long input whose meaning is local: text, audio, time series. Time and memory grow
    with the length, not with its square, and n layers reach n (window - 1) positions. Not where one
    layer must relate what is far apart, and not for input about as short as the window, which full
    attention serves as fast.

    Args:
        d_model: features.
        num_heads: query heads.
        window: positions at a distance below it are seen, the own included; causal, exactly this
            many. None = an eighth of length, at least 2; without a length 256.
        length: the input that sizes not given are made for, tokens; longer input is served too.
        causal: no look-ahead.
        bias: biases on the maps.
        dropout: on the weights, while training.

    Cost: 4 (d^2 + d) parameters; 8 T d^2 + 4 T (2 w - 1) d FLOPs of visible pairs, causal
        8 T d^2 + 4 T w d; state 2 d numbers per token, of which the last w are read.
    Source: Beltagy et al. 2020, arXiv:2004.05150, section 3.1, "sliding window". The paper counts
        both sides: its w is our 2 window - 2, and its w = 512 our 257.
    """
    near = Window(window_for(length, 256) if window is None else window)
    base = standard(d_model, num_heads, bias=bias, dropout=dropout)
    return replace(base, pattern=near & Causal() if causal else near)
