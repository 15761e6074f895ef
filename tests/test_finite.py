"""Numbers are looked at only where code may depend on them."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, vmap

from suffice import Attention, preset
from suffice.testing import assert_close, normal
from suffice.torch_compat import finite, readable

NAN = torch.tensor([1.0, torch.nan])


def test_what_is_there_is_looked_at():
    assert readable(NAN)
    assert not finite(NAN)
    assert finite(NAN[:1])


def test_what_has_no_content_is_not():
    assert not readable(NAN.to("meta"))
    assert finite(NAN.to("meta"))


def test_what_is_transformed_is_not():
    seen = []
    vmap(lambda x: seen.append(finite(x)) or x)(NAN[:, None])
    assert seen == [True]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's own, of vmap
def test_each_sample_has_its_gradient():
    """Of a layer that mixes, turns, and hides keys: what torch.func does to any module."""
    spec = preset("mistral", 16, 4, window=4, causal=True)
    layer = Attention(spec, dtype=torch.float64)
    x, valid = normal(3, 2, 9, 16, seed=1), torch.ones(2, 9, dtype=torch.bool)
    valid[0, 2] = False

    def loss(x: torch.Tensor) -> torch.Tensor:
        return layer(x, valid=valid).square().sum()

    want = []
    for one in x:
        leaf = one.clone().requires_grad_()
        want += torch.autograd.grad(loss(leaf), leaf)
    assert_close(vmap(grad(loss))(x), torch.stack(want))
