"""What a streaming layer keeps of the past: one file per memory."""

from suffice.memory.base import Held, Memory, Slot, Store
from suffice.memory.dynamic import Dynamic
from suffice.memory.quantised import Quantised
from suffice.memory.rolling import Rolling
from suffice.memory.static import Static

__all__ = ["Dynamic", "Held", "Memory", "Quantised", "Rolling",
    "Slot", "Static", "Store"]
