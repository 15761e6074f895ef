"""What keeps NaN and Inf at a key from the queries that may not see it."""

from __future__ import annotations

import torch
from torch import Tensor

from suffice.ops.problem import Op, Problem
from suffice.ops.reference import REFERENCE


def spared(op: Op, problem: Problem, *read: Tensor) -> Op:
    """Return the op itself, or the specification where the op would spread a NaN or an Inf.

    A product gives a hidden value the weight 0, and 0 * NaN is NaN; the specification does not
    read hidden values at all. Looking costs one pass over what is read. It is done where keys are
    hidden from some queries, on a CPU; a GPU would have to wait for the answer, and a compiled
    graph cannot branch on it.

    Args:
        op: the op chosen.
        problem: what it computes.
        read: tensors that hold all that keys and values are made of.
    """
    if (
        problem.unrestricted
        or problem.device != "cpu"
        or op is REFERENCE
        or torch.compiler.is_compiling()
    ):
        return op
    exact = torch.promote_types(read[0].dtype, torch.float32)
    finite = all(bool(t.detach().sum(dtype=exact).isfinite()) for t in read)
    return op if finite else REFERENCE
