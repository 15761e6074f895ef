"""What turns query-key products into weights: one file per kernel."""

from suffice.kernels.base import FeatureMap, Kernel
from suffice.kernels.softmax import Softmax

__all__ = ["FeatureMap", "Kernel", "Softmax"]
