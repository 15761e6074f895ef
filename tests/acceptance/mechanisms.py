"""A layer of every mechanism, small, for promises that hold for all of them."""

from __future__ import annotations

import torch

from suffice import Attention, AttentionSpec, preset
from suffice.errors import ConfigError
from suffice.mixing import Alignment
from suffice.positions import Rope
from suffice.presets import PRESETS, takes_length
from suffice.testing import drawn

LENGTH = 9
D_MODEL = 12
NUM_HEADS = 3


def spec_of(
    name: str,
    *,
    causal: bool = False,
    d_model: int = D_MODEL,
    num_heads: int = NUM_HEADS,
    length: int = LENGTH,
) -> AttentionSpec:
    """The preset, sized for a length if it can be."""
    options = {"length": length} if takes_length(name) else {}
    return preset(name, d_model, num_heads, causal=causal, **options)


def legal(name: str, causal: bool) -> bool:
    try:
        spec_of(name, causal=causal)
    except ConfigError:
        return False
    return True


PRESET_KINDS = {
    f"causal-{name}" if causal else name: (name, causal)
    for causal in (False, True)
    for name in PRESETS
    if legal(name, causal)
}
"""Each preset with look-ahead and without, where it can be either: (name, causal)."""

SPECS: dict[str, AttentionSpec] = {
    **{kind: spec_of(name, causal=causal) for kind, (name, causal) in PRESET_KINDS.items()},
    "rope": AttentionSpec(d_model=D_MODEL, num_heads=NUM_HEADS, position=Rope()),
    "super-per-head": AttentionSpec(
        d_model=D_MODEL, num_heads=NUM_HEADS, mixing=Alignment(LENGTH, per_head=True)
    ),
}
NAMES = tuple(SPECS)
CROSS = tuple(n for n, s in SPECS.items() if s.pattern.crosses and not s.position.absolute)


def layer_of(name: str, *, dtype: torch.dtype = torch.float64, impl: str = "auto") -> Attention:
    return drawn(Attention(SPECS[name], impl=impl), seed=4).to(dtype)
