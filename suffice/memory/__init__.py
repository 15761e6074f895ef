"""What a streaming layer keeps of the past: one file per memory."""

from suffice.memory.base import Claim, Held, Memory, Store, Stretch
from suffice.memory.dynamic import Dynamic, Static
from suffice.memory.quantised import Quantised
from suffice.memory.rolling import Rolling

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
