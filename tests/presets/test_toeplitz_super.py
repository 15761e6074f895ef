"""Super Attention for any length, by name."""

from __future__ import annotations

import pytest

from suffice import preset
from suffice.encoders import Efficient
from suffice.errors import ConfigError
from suffice.mixing import ToeplitzAlignment
from suffice.patterns import Causal, Full
from suffice.presets import needs_length


@pytest.mark.parametrize("causal", [False, True])
def test_it_is_efficient_attention_over_a_filter(causal):
    spec = preset("toeplitz_super", 16, 4, width=3, causal=causal, init="glorot", bias=False)
    assert spec.mixing == ToeplitzAlignment(3, bias=False, init="glorot")
    assert spec.encoder == Efficient()
    assert spec.pattern == (Causal() if causal else Full())
    assert spec.max_length is None
    assert not needs_length("toeplitz_super")


def test_parameters():
    for causal, weights in ((True, 4), (False, 7)):
        cost = preset("toeplitz_super", 16, 4, causal=causal).cost(100)
        assert cost.parameters == 2 * (16 * 16 + 16) + weights + 1


def test_refusals():
    with pytest.raises(ConfigError, match="width=0"):
        preset("toeplitz_super", 16, 4, width=0)
