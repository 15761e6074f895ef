"""Whether what is about to be multiplied holds a NaN or an Inf."""

from __future__ import annotations

import torch
from torch import Tensor


def finite(*tensors: Tensor) -> bool:
    """Return False if one of the tensors holds a NaN or an Inf.

    A product gives a hidden number the weight 0, and 0 * NaN is NaN: who must not read hidden
    numbers looks first, which costs one pass. On a GPU (which would have to wait for the answer)
    and in a compiled graph (which cannot branch on it) nobody looks, and True is returned.
    """
    if torch.compiler.is_compiling() or any(t.device.type != "cpu" for t in tensors):
        return True
    exact = torch.promote_types(tensors[0].dtype, torch.float32)  # sums of half overflow
    return all(bool(t.detach().sum(dtype=exact).isfinite()) for t in tensors)
