"""Whether what is about to be multiplied holds a NaN or an Inf."""

from __future__ import annotations

import torch
from torch import Tensor


def readable(*tensors: Tensor) -> bool:
    """Return whether code may depend on what tensors hold, and keep what it makes between calls.

    Not on a GPU (which would have to wait for the answer), on tensors without content, in a
    compiled graph or under `torch.func` (which cannot branch on it, and whose tensors die with it).
    """
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return all(t.device.type == "cpu" for t in tensors)


def finite(*tensors: Tensor) -> bool:
    """Return False if one of the tensors holds a NaN or an Inf.

    A product gives a hidden number the weight 0, and 0 * NaN is NaN: who must not read hidden
    numbers looks first, which costs one pass. Where they are not `readable` nobody looks, and True
    is returned.
    """
    if not readable(*tensors):
        return True
    exact = torch.promote_types(tensors[0].dtype, torch.float32)  # sums of half overflow
    return all(bool(t.detach().sum(dtype=exact).isfinite()) for t in tensors)
