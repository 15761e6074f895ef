"""What turns query-key products into weights: one file per kernel."""

from suffice.kernels.base import FeatureMap, Kernel
from suffice.kernels.elu import Elu
from suffice.kernels.favor import Favor
from suffice.kernels.rfa import Rfa
from suffice.kernels.softmax import Softmax

__all__ = ["Elu", "Favor", "FeatureMap", "Kernel", "Rfa", "Softmax"]
