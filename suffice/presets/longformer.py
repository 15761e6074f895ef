"""Longformer's attention."""

from __future__ import annotations

from dataclasses import replace

from suffice.patterns import Causal, Global, Window
from suffice.presets.sizes import window_for
from suffice.presets.standard import standard
from suffice.spec import AttentionSpec


def longformer(
    d_model: int,
    num_heads: int,
    *,
    window: int | None = None,
    global_tokens: int = 1,
    length: int | None = None,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Longformer's attention: a window, and a few first tokens that see and are seen by all.

    Choose it for long documents that are classified or asked about: the class token or the
    question stands first and reads everything, the rest reads its surroundings, at a cost that
    grows with the length. Not causal without need: the first tokens then hear nothing of what
    follows them.

    Args:
        d_model: features.
        num_heads: query heads.
        window: positions at a distance below it are seen, the own included. None = an eighth of
            length, at least 2; without a length 257, the paper's 256 on each side.
        global_tokens: how many first positions are global; 1 as for the paper's class token.
        length: the input that sizes not given are made for, tokens; longer input is served too.
        causal: no look-ahead.
        bias: biases on the maps.
        dropout: on the weights, while training.

    Cost: 4 (d^2 + d) parameters; 8 T d^2 + about 4 T (2 w - 1 + 2 g) d FLOPs of visible pairs;
        state 2 d numbers per token.
    Source: Beltagy et al. 2020, arXiv:2004.05150, section 3.1. Ours has the same linear maps for
        global pairs, where the paper learns a second set; global positions are the first ones,
        where the paper lets a task choose; no dilation, which the paper uses in some heads of its
        character models only.
    """
    near = Window(window_for(length, 257) if window is None else window)
    pattern = near | Global(global_tokens)
    base = standard(d_model, num_heads, bias=bias, dropout=dropout)
    return replace(base, pattern=pattern & Causal() if causal else pattern)
