"""How x becomes queries, keys and values: one file per choice."""

from suffice.projections.base import Columns, Projections, Widths
from suffice.projections.efficient import Efficient
from suffice.projections.latent import Latent
from suffice.projections.optimised import Optimised
from suffice.projections.standard import Standard

__all__ = ["Columns", "Efficient", "Latent", "Optimised", "Projections", "Standard", "Widths"]
