"""Layers: attention of any spec, blocks, feed-forward maps and norms."""

from suffice.layers.attention import Attention
from suffice.layers.basic import Dropout, RMSNorm, sinusoidal
from suffice.layers.block import MLP, Block, CrossBlock, SwiGLU
from suffice.layers.experts import Experts, MixtureOfExperts
from suffice.layers.from_torch import from_torch
from suffice.layers.resize import extend, interpolate
from suffice.layers.watched import AttentionMap, watched

__all__ = [
    "MLP",
    "Attention",
    "AttentionMap",
    "Block",
    "CrossBlock",
    "Dropout",
    "Experts",
    "MixtureOfExperts",
    "RMSNorm",
    "SwiGLU",
    "extend",
    "from_torch",
    "interpolate",
    "sinusoidal",
    "watched",
]
