"""A pattern of one's own: a query sees itself and the keys 1, 2, 4, 8, ... before it."""

import time
from dataclasses import dataclass

import torch

from suffice import Attention, AttentionSpec
from suffice.patterns import Causal, Pattern
from suffice.view import text


@dataclass(frozen=True)
class Powers(Pattern):
    """A query sees itself and the keys at distances 1, 2, 4, 8, ... before it."""

    causal = True

    def allowed(self, q_positions, k_positions):
        """Return which pairs may attend."""
        back = q_positions - k_positions
        return (back >= 0) & (back & (back - 1) == 0)


LENGTH = 1024
print(text(Powers(), 20))
print(f"{Powers().pairs(LENGTH, LENGTH):,} of {Causal().pairs(LENGTH, LENGTH):,} causal pairs")

x = torch.randn(1, LENGTH, 64)
for pattern in (Causal(), Powers()):
    layer = Attention(AttentionSpec(d_model=64, num_heads=4, pattern=pattern)).eval()
    with torch.no_grad():
        layer(x)
        start = time.perf_counter()
        for _ in range(5):
            layer(x)
    spent = (time.perf_counter() - start) / 5
    chosen = layer.explain(LENGTH).splitlines()[0]
    print(f"{pattern!r:10} {spent * 1e3:6.2f} ms  {chosen}")
