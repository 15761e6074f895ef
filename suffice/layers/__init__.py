"""The modules models are made of."""

from suffice.layers.attention import Attention
from suffice.layers.block import Block
from suffice.layers.dropout import Dropout
from suffice.layers.from_torch import from_torch
from suffice.layers.mlp import MLP
from suffice.layers.resize import extend, interpolate
from suffice.layers.sinusoidal import sinusoidal

__all__ = [
    "MLP",
    "Attention",
    "Block",
    "Dropout",
    "extend",
    "from_torch",
    "interpolate",
    "sinusoidal",
]
