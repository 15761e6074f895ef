"""Which attention is enough? Every mechanism behind one layer, measured side by side."""

from suffice import masks
from suffice.layers import Attention, extend, from_torch, interpolate
from suffice.ops import attend, weights
from suffice.presets import preset
from suffice.spec import AttentionSpec
from suffice.torch_compat import threads

__version__ = "0.1.0"

__all__ = [
    "Attention",
    "AttentionSpec",
    "__version__",
    "attend",
    "extend",
    "from_torch",
    "interpolate",
    "masks",
    "preset",
    "threads",
    "weights",
]
