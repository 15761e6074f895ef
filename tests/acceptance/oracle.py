"""The oracle: float64, one query row at a time, only what the row may see is touched."""

from __future__ import annotations

import torch
from torch import Tensor


def oracle(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, scale: float | None = None) -> Tensor:
    """Outputs [B, H, T, E] in float64; query heads share key/value heads in contiguous groups.

    allowed: bool, broadcasts to [B, H, T, S].
    """
    batch, heads, queries, width = q.shape
    group = heads // k.shape[1]
    scale = width**-0.5 if scale is None else scale
    allowed = allowed.expand(batch, heads, queries, k.shape[2])
    out = torch.zeros(batch, heads, queries, v.shape[3], dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for t in range(queries):
                see = allowed[b, h, t]
                keys, values = k[b, h // group][see].double(), v[b, h // group][see].double()
                if len(keys):
                    out[b, h, t] = (scale * (keys @ q[b, h, t].double())).softmax(0) @ values
    return out
