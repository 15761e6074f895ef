"""Lengthen a trained layer whose Alignment fixes the length."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import nn

from suffice.errors import ConfigError
from suffice.layers.attention import Attention
from suffice.mixing import Alignment


def extend(layer: Attention, length: int) -> Attention:
    """Return a copy of a layer whose W_A reaches to `length`, as the identity on new positions.

    Input up to the old length gives the same result as before; each new position starts with its
    own value and nothing else.

    Args:
        layer: a layer whose spec has an Alignment.
        length: the new length, tokens; at least the old one.

    Raises:
        ConfigError: if the layer has no Alignment, or length is below the old one.
    """
    alignment = layer.spec.mixing
    if not isinstance(alignment, Alignment):
        raise ConfigError(
            f"extend lengthens an Alignment; this layer has {alignment!r}, which takes any length."
        )
    old = alignment.length
    if length < old:
        raise ConfigError(
            f"extend to length={length} would cut an Alignment of length {old}; shorter input "
            "needs no change: it uses the top-left block."
        )
    longer = copy.deepcopy(layer)
    longer.spec = replace(layer.spec, mixing=replace(alignment, length=length))
    weight = layer.mixing.weight.detach()
    wide = torch.eye(length, device=weight.device, dtype=weight.dtype).repeat(len(weight), 1, 1)
    wide[:, :old, :old] = weight
    longer.mixing.weight = nn.Parameter(wide, layer.mixing.weight.requires_grad)
    if layer.mixing.bias is not None:
        bias = weight.new_zeros(len(weight), length)
        bias[:, :old] = layer.mixing.bias.detach()
        longer.mixing.bias = nn.Parameter(bias, layer.mixing.bias.requires_grad)
    return longer
