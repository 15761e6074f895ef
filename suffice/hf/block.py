"""A block whose features transformers can compute again instead of keeping them."""

from __future__ import annotations

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from suffice.hf.attention import SufficeAttention
from suffice.layers import Block


class SufficeBlock(GradientCheckpointingLayer, Block):
    """A block made of the parts of another one.

    Args:
        block: whose norms and MLP these are.
        attention: takes the place of its attention.
    """

    def __init__(self, block: Block, attention: SufficeAttention) -> None:
        nn.Module.__init__(self)  # every part is there already
        for name, part in block.named_children():
            self.add_module(name, part)
        self.attention = attention
        self.norm = block.norm
