"""A layer of every mechanism, small, for promises that hold for all of them."""

from __future__ import annotations

import torch

from suffice import Attention, AttentionSpec, preset
from suffice.mixing import Alignment
from suffice.positions import Rope
from suffice.presets import PRESETS, needs_length
from suffice.testing import drawn

LENGTH = 9
D_MODEL = 12
NUM_HEADS = 3


def spec_of(name: str, *, causal: bool = False) -> AttentionSpec:
    length = {"length": LENGTH} if needs_length(name) else {}
    return preset(name, D_MODEL, NUM_HEADS, causal=causal, **length)


SPECS: dict[str, AttentionSpec] = {
    **{name: spec_of(name) for name in PRESETS},
    **{f"causal-{name}": spec_of(name, causal=True) for name in PRESETS},
    "rope": AttentionSpec(d_model=D_MODEL, num_heads=NUM_HEADS, position=Rope()),
    "super-per-head": AttentionSpec(
        d_model=D_MODEL, num_heads=NUM_HEADS, mixing=Alignment(LENGTH, per_head=True)
    ),
}
NAMES = tuple(SPECS)
CROSS = tuple(n for n, s in SPECS.items() if not (s.pattern.causal or s.position.absolute))


def layer_of(name: str, *, dtype: torch.dtype = torch.float64, impl: str = "auto") -> Attention:
    return drawn(Attention(SPECS[name], impl=impl), seed=4).to(dtype)
