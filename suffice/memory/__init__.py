"""What a streaming layer keeps of the past: one file per memory."""

from suffice.memory.base import Claim, Held, Memory, Store, Stretch
from suffice.memory.dynamic import Dynamic
from suffice.memory.quantised import Quantised
from suffice.memory.rolling import Rolling
from suffice.memory.static import Static

__all__ = [
    "Claim",
    "Dynamic",
    "Held",
    "Memory",
    "Quantised",
    "Rolling",
    "Static",
    "Store",
    "Stretch",
]
