"""The attention of Mistral 7B."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from suffice.errors import ConfigError
from suffice.patterns import Causal, Window
from suffice.positions import Rope
from suffice.presets.sizes import checked, window_for
from suffice.presets.standard import standard
from suffice.spec import AttentionSpec

SHARED = 4  # query heads of one key/value head in Mistral 7B


def mistral(
    d_model: int,
    num_heads: int,
    *,
    window: int | None = None,
    full_every: int | None = None,
    num_kv_heads: int | None = None,
    layer: int = 0,
    length: int | None = None,
    causal: bool = False,
    bias: bool = True,
    dropout: float = 0.0,
) -> AttentionSpec:
    """Mistral's attention: a window, shared key/value heads and rotary positions, layer by layer.

    Choose it for language models of long texts: a streaming state that stops growing at the window
    and is smaller by the heads that share it. Where something far back must be found exactly, give
    full_every: the last of every so many layers then sees everything, as in hybrid models since.
    Not for short input, which a window does not make cheaper.

    Args:
        d_model: features.
        num_heads: query heads.
        window: positions at a distance below it are seen, the own included; causal, exactly this
            many. None = an eighth of length, at least 2; without a length 4096.
        full_every: None = every layer has the window, as in Mistral 7B; n = layers n - 1, 2 n - 1,
            ... see every key: 2 alternates, 6 is five windows to one full layer.
        num_kv_heads: None = a quarter of the heads where 4 divides them, else a half, else all.
        layer: which one of a model, from 0; `schedule` gives each block its own.
        length: the input that sizes not given are made for, tokens; longer input is served too.
        causal: no look-ahead, as in the paper.
        bias: biases on the maps; the paper's model has none.
        dropout: on the weights, while training.

    Raises:
        ConfigError: for a negative layer, or full_every below 1.

    Cost: 2 (1 + g) (d^2 + d) parameters for g = num_kv_heads / num_heads (biases of K and V shrink
        too); 4 T w d FLOPs of visible pairs in a causal layer with a window; state 2 g d numbers
        per token, of which the last w are read.
    Source: Jiang et al. 2023, arXiv:2310.06825, section 2 (window 4096 in all layers, 32 heads on
        8 key/value heads). `full_every` is not the paper's: Gemma Team 2024, arXiv:2408.00118,
        section 2 (every second layer), and Gemma Team 2025, arXiv:2503.19786, section 2 (every
        sixth).
    """
    if isinstance(layer, bool) or not isinstance(layer, int) or layer < 0:
        raise ConfigError(f"layer={layer!r}: layers have whole numbers from 0.")
    near = Window(window_for(length, 4096) if window is None else window)
    base = replace(
        standard(d_model, num_heads, causal=causal, bias=bias, dropout=dropout),
        num_kv_heads=num_heads // gcd(num_heads, SHARED) if num_kv_heads is None else num_kv_heads,
        position=Rope(),
    )
    if full_every is not None and (layer + 1) % checked("full_every", full_every) == 0:
        return base
    return replace(base, pattern=near & Causal() if causal else near)
