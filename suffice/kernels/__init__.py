"""Kernels: how query-key products become weights."""

from suffice.kernels.base import FeatureMap, Kernel, Softmax
from suffice.kernels.features import Elu, Favor, Rfa

__all__ = ["Elu", "Favor", "FeatureMap", "Kernel", "Rfa", "Softmax"]
