"""Forward derivatives, and so second ones by torch.func, through the ops that torch's kernel is."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, jvp

from suffice import Attention, AttentionSpec
from suffice.patterns import Causal
from suffice.testing import assert_close, drawn, normal


@pytest.mark.filterwarnings("ignore:.*jit.script:DeprecationWarning")
@pytest.mark.parametrize(("impl", "heads"), [("fused", 4), ("folded", 2)])
def test_second_derivatives_are_those_of_the_reference(impl, heads):
    spec = AttentionSpec(d_model=16, num_heads=4, num_kv_heads=heads, pattern=Causal())
    layers = [drawn(Attention(spec, impl=i, dtype=torch.float64), seed=2) for i in (impl, "matmul")]
    x, along = normal(2, 3, 16, seed=1), normal(2, 3, 16, seed=3)
    got, want = (jvp(grad(lambda x, f=f: f(x).square().sum()), (x,), (along,)) for f in layers)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b, n=16)
