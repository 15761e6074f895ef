"""How far two layers are apart in float64, on inputs drawn from a seed."""

from __future__ import annotations

import torch

from suffice.convert.maps import Maps, build
from suffice.layers import Attention
from suffice.spec import AttentionSpec

ROWS, LENGTH = 2, 24
EXACT = 1e-9  # of the largest output: above it rounding alone is no explanation


@torch.no_grad()
def difference(
    layer: Attention,
    maps: Maps,
    spec: AttentionSpec,
    *,
    longest: int | None = None,
    seed: int = 0,
) -> float:
    """Return the largest difference of outputs over the largest output.

    Args:
        layer: as it was.
        maps: of the layer it becomes.
        spec: of that layer.
        longest: the longest input the model reads, tokens; None = any.
        seed: of the inputs.
    """
    given = (longest, layer.spec.max_length, spec.max_length)
    limits = [n for n in given if n is not None]
    length = min([LENGTH, *limits])
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, length, spec.d_model, generator=draws, dtype=torch.float64)
    read = [x]
    if spec.widths.d_memory != spec.d_model:
        wide = (ROWS, length, spec.widths.d_memory)
        read.append(torch.randn(wide, generator=draws, dtype=torch.float64))
    was = Attention(layer.spec, dtype=torch.float64).eval()
    was.load_state_dict({n: t.double() for n, t in layer.state_dict().items()})
    now = build(maps, spec, dtype=torch.float64, like=was)
    before = was(*read)
    return float((now(*read) - before).abs().max() / before.abs().max().clamp(min=1e-300))
