"""Models on "meta" are built without drawing numbers and without torch's compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from suffice import preset
from suffice.models import LMConfig
from suffice.models.lm import SkipInit

SIZES = {"vocabulary_size": 9, "length": 8, "d_model": 8, "depth": 1, "mlp_width": 8}


def test_torch_dynamo_is_not_imported():
    program = f"""
import sys
from suffice import preset
from suffice.models import LMConfig
for name, options in (("super_attention", {{"length": 8}}), ("toeplitz_super", {{}})):
    for positions in ("learned", "sinusoidal"):
        config = LMConfig(**{SIZES}, positions=positions, tied=False)
        config.build(preset(name, 8, 2, causal=True, **options), device="meta")
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize("name", ["gqa", "super_attention"])
def test_a_model_on_meta_draws_no_numbers(name):
    options = {"length": 8} if name == "super_attention" else {}
    spec = preset(name, 8, 2, causal=True, **options)
    torch.manual_seed(3)
    initialised = LMConfig(**SIZES).build(spec)
    after = torch.rand(1)
    torch.manual_seed(3)
    empty = LMConfig(**SIZES).build(spec, device="meta")
    assert {n: p.shape for n, p in empty.named_parameters()} == {
        n: p.shape for n, p in initialised.named_parameters()
    }
    assert all(p.is_meta for p in empty.parameters())
    again = LMConfig(**SIZES).build(spec)
    assert torch.equal(torch.rand(1), after)
    for one, other in zip(again.parameters(), initialised.parameters(), strict=True):
        assert torch.equal(one, other)


def test_tensors_on_other_devices_are_initialised():
    with SkipInit():
        for fill in (nn.init.normal_, nn.init.ones_, torch.Tensor.uniform_):
            assert fill(torch.zeros(20)).abs().sum() > 0
        assert nn.init.normal_(tensor=torch.empty(3, device="meta")).is_meta
        assert torch.zeros(3, device="meta").normal_().is_meta
