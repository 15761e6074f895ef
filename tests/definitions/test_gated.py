"""Gates after attention, equation 5 of arXiv:2505.06708, one number after the other."""

from __future__ import annotations

import math

import pytest
import torch

from suffice import Attention, AttentionSpec
from suffice.combine import Concat, Gated
from suffice.errors import ConfigError
from suffice.patterns import Causal
from suffice.testing import drawn


@pytest.mark.parametrize("per", ["feature", "head"])
def test_it_is_the_formula(per):
    spec = AttentionSpec(d_model=12, num_heads=3, pattern=Causal(), combine=Gated(per))
    layer = drawn(Attention(spec, dtype=torch.float64), seed=1).eval()
    plain = Attention(AttentionSpec(d_model=12, num_heads=3, pattern=Causal()), dtype=torch.float64)
    weights = layer.state_dict()
    plain.load_state_dict({name: weights[name] for name in plain.state_dict()})
    identity = {"weight": torch.eye(12), "bias": torch.zeros(12)}
    plain.o_proj.load_state_dict(identity)
    x = torch.randn(1, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        heads, found = plain(x)[0], layer(x)[0]
        gate, o = layer.gate_proj, layer.o_proj
        for t in range(5):
            let = []
            for number in range(12):
                which = number if per == "feature" else number // 4
                product = float(x[0, t] @ gate.weight[which] + gate.bias[which])
                let.append(float(heads[t, number]) / (1.0 + math.exp(-product)))
            expected = o.weight @ torch.tensor(let).double() + o.bias
            torch.testing.assert_close(found[t], expected)


def test_a_gate_has_its_parameters():
    sizes = {"d_model": 12, "num_heads": 3}
    plain = AttentionSpec(**sizes, combine=Concat()).cost(5).parameters
    assert AttentionSpec(**sizes, combine=Gated()).cost(5).parameters == plain + 12 * 12 + 12
    assert AttentionSpec(**sizes, combine=Gated("head")).cost(5).parameters == plain + 12 * 3 + 3


def test_a_gate_has_its_products():
    from torch.utils.flop_counter import FlopCounterMode

    for combine in (Gated(), Gated("head")):
        layer = Attention(AttentionSpec(d_model=12, num_heads=3, combine=combine), impl="matmul")
        with FlopCounterMode(display=False) as counted, torch.no_grad():
            layer(torch.randn(1, 5, 12))
        assert counted.get_total_flops() == layer.spec.cost(5).flops


def test_other_gates_are_refused():
    with pytest.raises(ConfigError, match="per='feature' or per='head'"):
        Gated("token")
