"""What turns query-key products into weights: one file per kernel."""

from suffice.kernels.base import FeatureMap, Kernel, Softmax
from suffice.kernels.features import Elu, Favor, Rfa

__all__ = ["Elu", "Favor", "FeatureMap", "Kernel", "Rfa", "Softmax"]
