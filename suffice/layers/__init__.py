"""The modules models are made of."""

from suffice.layers.attention import Attention
from suffice.layers.block import Block
from suffice.layers.dropout import Dropout
from suffice.layers.extend import extend
from suffice.layers.from_torch import from_torch
from suffice.layers.mlp import MLP

__all__ = ["MLP", "Attention", "Block", "Dropout", "extend", "from_torch"]
