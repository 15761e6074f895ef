"""Define a pattern: a query attends to itself and to the keys 1, 2, 4, 8, ... before it."""

import time
from dataclasses import dataclass

import torch

from suffice import Attention, AttentionSpec
from suffice.patterns import Causal, Pattern
from suffice.view import text


@dataclass(frozen=True)
class Powers(Pattern):
    """A query attends to itself and to the keys at distances 1, 2, 4, 8, ... before it."""

    causal = True

    def allowed(self, q_positions, k_positions):
        """Return which queries may attend to which keys."""
        distance = q_positions - k_positions
        return (distance >= 0) & (distance & (distance - 1) == 0)


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
    seconds = (time.perf_counter() - start) / 5
    op = layer.explain(LENGTH).splitlines()[0]
    print(f"{pattern!r:10} {seconds * 1e3:6.2f} ms  {op}")
