"""What queries and keys are divided by before they meet: one file per value."""

from suffice.norms.base import Norm
from suffice.norms.head_rms import HeadRMS
from suffice.norms.no_norm import NoNorm

__all__ = ["HeadRMS", "NoNorm", "Norm"]
