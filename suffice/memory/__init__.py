"""The KV cache of a streaming layer: settings and stores."""

from suffice.memory.base import BufferView, CachedTensors, Memory, Slot, Store
from suffice.memory.dynamic import Dynamic, Static
from suffice.memory.quantised import Quantised
from suffice.memory.rolling import Rolling

__all__ = [
    "BufferView",
    "CachedTensors",
    "Dynamic",
    "Memory",
    "Quantised",
    "Rolling",
    "Slot",
    "Static",
    "Store",
]
