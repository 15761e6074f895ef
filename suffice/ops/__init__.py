"""The ways to compute an attention, the float64 specification among them, and the choice."""

from suffice.ops.attend import attend, weights
from suffice.ops.choose import OPS, choose, explain
from suffice.ops.flops import register_flops
from suffice.ops.problem import Problem
from suffice.ops.where import Where

__all__ = ["OPS", "Problem", "Where", "attend", "choose", "explain", "register_flops", "weights"]
