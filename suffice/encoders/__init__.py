"""How x becomes queries, and what is kept of a token so that later queries can read it."""

from suffice.encoders.linear import Columns, Efficient, Encoder, Latent, Optimised, Standard, Widths
from suffice.encoders.norms import HeadRMS, NoNorm, Norm

__all__ = [
    "Columns",
    "Efficient",
    "Encoder",
    "HeadRMS",
    "Latent",
    "NoNorm",
    "Norm",
    "Optimised",
    "Standard",
    "Widths",
]
