"""FLOPs that torch's counter finds in native kernels are those of the keys that are read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from suffice import Attention, AttentionSpec
from suffice.memory import Dynamic, Quantised, Rolling
from suffice.ops import register_flops
from suffice.patterns import Causal, Window
from suffice.testing import drawn, normal
from tests.ops.native.codings import needs_kernels

SPEC = AttentionSpec(d_model=32, num_heads=4, num_kv_heads=2, pattern=Causal())


@needs_kernels
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize(
    "memory",
    [Dynamic(), Quantised(block=4, recent=2), Quantised(Rolling(6), block=4, recent=2)],
    ids=repr,
)
@torch.no_grad()
def test_keys_that_a_step_reads(memory, window):
    """Of 2 rows: 2 FLOPs for each feature of a key and of a value, as far as a window goes."""
    if memory.window is not None and window is None:
        pytest.skip("how much it holds beyond its window depends on its blocks")
    pattern = Causal() if window is None else Window(window) & Causal()
    layer = drawn(Attention(replace(SPEC, pattern=pattern)), seed=1).float().eval()
    x, state, read = normal(2, 26, 32, seed=2, dtype=torch.float32), layer.state(memory), 0
    register_flops()
    counted = 0
    for new in (3, 1, 1, 2, 13, 1, 1, 1, 3):
        with FlopCounterMode(display=False) as counter:
            layer(x[:, read : read + new], state=state)
        ours = {
            str(op): flops
            for op, flops in counter.get_flop_counts()["Global"].items()
            if str(op).startswith("suffice.")
        }
        if "suffice.native_decode_coded" in ours or (ours and window is None):
            counted += 1
            keys = read + new if window is None else min(read + new, window + new - 1)
            assert sum(ours.values()) == 2 * 2 * 4 * new * keys * (8 + 8), (read, new, ours)
        read += new
    # portable kernels are not chosen for the shortest caches
    assert counted >= 3 or (window is not None and memory == Dynamic())
