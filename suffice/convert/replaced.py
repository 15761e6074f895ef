"""A model with other attention layers in it."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from torch import nn

from suffice.layers import Attention
from suffice.layers.state import LayerState
from suffice.memory import Dynamic
from suffice.models.packed import replace_module
from suffice.spec import AttentionSpec

STACKS = {
    "specs": ("blocks", "attention"),
    "encoder_specs": ("encoder", "attention"),
    "decoder_specs": ("decoder", "attention"),
    "cross_specs": ("decoder", "cross"),
}
"""Where models list the compositions of which layers of which blocks."""


def replaced(model: nn.Module, layers: Mapping[str, Attention]) -> nn.Module:
    """Return a copy of a model with other attention layers; it lists their compositions, too.

    Args:
        model: any.
        layers: by the names of the modules they replace; "" is the model itself.
    """
    if "" in layers:
        return layers[""]
    other = copy.deepcopy(model)
    for name, layer in layers.items():
        replace_module(other, name, layer)
    for specs, (blocks, attention) in STACKS.items():
        if hasattr(other, specs):
            found = [getattr(block, attention).spec for block in getattr(other, blocks)]
            setattr(other, specs, found)
    return other


def state_of(spec: AttentionSpec) -> int:
    """Return the numbers a layer's state keeps of each token of a text."""
    width = spec.widths.kv
    if not spec.pattern.causal:
        return 2 * width
    state = LayerState(spec, Dynamic())
    return width * ((1 if state.tied else 2) + (state.raw is not None))
