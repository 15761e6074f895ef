"""Encoders: from x to queries, and to the keys and values that are cached."""

from suffice.encoders.base import (
    Columns,
    Efficient,
    Encoder,
    Factory,
    Latent,
    LinearEncoder,
    LinearMap,
    Optimised,
    Standard,
)
from suffice.encoders.forgetting import Forgetting
from suffice.encoders.mla import MLA
from suffice.encoders.norms import HeadLayerNorm, HeadRMS, NoNorm, Norm, ProjectionRMS, QKVNorm

__all__ = [
    "MLA",
    "Columns",
    "Efficient",
    "Encoder",
    "Factory",
    "Forgetting",
    "HeadLayerNorm",
    "HeadRMS",
    "Latent",
    "LinearEncoder",
    "LinearMap",
    "NoNorm",
    "Norm",
    "Optimised",
    "ProjectionRMS",
    "QKVNorm",
    "Standard",
]
