"""Ops: implementations of attention, the float64 reference among them, and their dispatch."""

from suffice.ops.attend import attend, weights
from suffice.ops.call import AttentionCall, MaskInputs
from suffice.ops.dispatch import OPS, choose, explain
from suffice.ops.flops import register_flops

__all__ = [
    "OPS",
    "AttentionCall",
    "MaskInputs",
    "attend",
    "choose",
    "explain",
    "register_flops",
    "weights",
]
