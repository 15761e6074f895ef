"""Star-Transformer's attention."""

from __future__ import annotations

from dataclasses import replace

from suffice.patterns import Causal, Global, Window
from suffice.presets.standard import standard
from suffice.spec import AttentionSpec


def star_transformer(
    d_model: int,
    num_heads: int,
    *,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Star-Transformer's attention: every token sees its two neighbours and one relay for all.

    Choose it for short, modest data sets and the smallest number of pairs: any two tokens meet
    through the relay in two layers. Not for language models: causal, the relay hears nothing.

    Our reading: the relay is the first token of the sequence, so a class token there does both;
    the ring is `Window(2)`, the star `Global(1)`.

    Args:
        d_model: features.
        num_heads: query heads.
        causal: no look-ahead.
        bias: biases on the maps.
        dropout: on the weights, while training.

    Cost: 4 (d^2 + d) parameters; 8 T d^2 + about 20 T d FLOPs of visible pairs; state 2 d numbers
        per token.
    Source: Guo et al. 2019, arXiv:1902.09113, section 3. Ours updates relay and tokens at once,
        where the paper takes turns and starts the relay as a mean; the ends of the ring do not
        meet; a token does not read its own embedding again in every layer; every layer has maps of
        its own.
    """
    pattern = Window(2) | Global(1)
    base = standard(d_model, num_heads, bias=bias, dropout=dropout)
    return replace(base, pattern=pattern & Causal() if causal else pattern)
