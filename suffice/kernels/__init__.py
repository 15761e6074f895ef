"""Kernels: how query-key products become weights."""

from suffice.kernels.base import FeatureMap, Kernel, Softmax
from suffice.kernels.features import Elu, Favor, Rfa
from suffice.kernels.recurrent import Decayed, Delta, Recurrent

__all__ = [
    "Decayed",
    "Delta",
    "Elu",
    "Favor",
    "FeatureMap",
    "Kernel",
    "Recurrent",
    "Rfa",
    "Softmax",
]
