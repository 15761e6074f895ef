"""What a streaming layer keeps of its keys and values: the KV cache, as a value and as a store."""

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
