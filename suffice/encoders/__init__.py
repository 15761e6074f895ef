"""How x becomes queries, and what is cached of a token so that later queries can attend to it."""

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
from suffice.encoders.mla import MLA
from suffice.encoders.norms import HeadRMS, NoNorm, Norm

__all__ = [
    "MLA",
    "Columns",
    "Efficient",
    "Encoder",
    "Factory",
    "HeadRMS",
    "Latent",
    "LinearEncoder",
    "LinearMap",
    "NoNorm",
    "Norm",
    "Optimised",
    "Standard",
]
