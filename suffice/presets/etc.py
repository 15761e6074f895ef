"""ETC's global-local attention."""

from __future__ import annotations

from dataclasses import replace

from suffice.patterns import Causal, Global, Window
from suffice.presets.sizes import checked, window_for
from suffice.presets.standard import standard
from suffice.spec import AttentionSpec


def etc(
    d_model: int,
    num_heads: int,
    *,
    window: int | None = None,
    global_tokens: int | None = None,
    length: int | None = None,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """ETC's global-local attention: many global tokens first, then a long input with a window.

    Choose it for structured input that brings summary tokens of its own: one for each sentence or
    paragraph, put in front of the text. Longformer with a fraction of the sequence global instead
    of a token or two; without such tokens take longformer.

    Our reading: the global input is the first `global_tokens` positions of one sequence, the long
    input is the rest. Global to global, global to long and long to global see every pair, long to
    long sees the window.

    Args:
        d_model: features.
        num_heads: query heads.
        window: long positions at a distance below it are seen, the own included. None = an eighth
            of length, at least 2; without a length 85, the paper's radius of 84.
        global_tokens: how many first positions are global. None = a sixteenth of length, at least
            1; without a length 230, the paper's for 4096 long positions.
        length: the input that sizes not given are made for, tokens; longer input is served too.
        causal: no look-ahead.
        bias: biases on the maps.
        dropout: on the weights, while training.

    Cost: 4 (d^2 + d) parameters; 8 T d^2 + about 4 T (2 w - 1 + 2 g) d FLOPs of visible pairs;
        state 2 d numbers per token.
    Source: Ainslie et al. 2020, arXiv:2004.08483, section 3.2. Left out are the typed relations
        (learned labels of pairs, section 3.1), the masks that tie a global token to its own part of
        the long input, and separate linear maps for the four kinds of pairs, an option there; the
        window crosses the border between global and long input, where everything is seen anyway.
    """
    if global_tokens is None:
        global_tokens = 230 if length is None else max(1, checked("length", length) // 16)
    near = Window(window_for(length, 85) if window is None else window)
    pattern = near | Global(global_tokens)
    base = standard(d_model, num_heads, bias=bias, dropout=dropout)
    return replace(base, pattern=pattern & Causal() if causal else pattern)
