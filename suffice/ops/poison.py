"""What keeps NaN and Inf at a key from the queries that may not see it."""

from __future__ import annotations

from torch import Tensor

from suffice.finite import finite
from suffice.ops.op import Op
from suffice.ops.problem import Problem
from suffice.ops.reference import REFERENCE


def spared(op: Op, problem: Problem, *read: Tensor) -> Op:
    """Return the op itself, or the specification where the op would spread a NaN or an Inf.

    The specification does not read hidden values at all; the fast ops give them the weight 0,
    which is the same unless something is not finite.

    Args:
        op: the op chosen.
        problem: what it computes.
        read: tensors that hold all that keys and values are made of.
    """
    if problem.unrestricted or op is REFERENCE or finite(*read):
        return op
    return REFERENCE
