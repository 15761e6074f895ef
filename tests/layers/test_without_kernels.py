"""Layers in float32 where the native kernels are absent: what PyTorch computes in their place.

Elsewhere float32 on a CPU goes to the kernels and float64 to PyTorch, so that the conversions of
the latter's float32 are seen here alone.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from suffice import Attention
from suffice.combine import Concat
from suffice.testing import assert_close, drawn, normal
from tests.acceptance.mechanisms import PRESET_KINDS, RECURRENT, spec_of

pytestmark = pytest.mark.usefixtures("no_kernels")

LENGTH, D_MODEL = 70, 16  # several chunks of sums, the last one not full
X = normal(3, LENGTH, D_MODEL, seed=1, dtype=torch.float32)
VALID = torch.ones(3, LENGTH, dtype=torch.bool)
VALID[0, :33], VALID[1, 64:] = False, False


def layers_of(kind):
    """A layer in float32, and the reference in float64 with the same parameters."""
    name, causal = PRESET_KINDS[kind]
    spec = spec_of(name, causal=causal, d_model=D_MODEL, num_heads=4, length=LENGTH)
    if name in RECURRENT:  # a norm of heads magnifies rounding where a sum is near 0
        spec = replace(spec, combine=Concat())
    layer = drawn(Attention(spec), seed=3).float().eval()
    exact = Attention(spec, impl="reference", dtype=torch.float64).eval()
    exact.load_state_dict(copy.deepcopy(layer.state_dict()))
    return layer, exact


@pytest.mark.parametrize("kind", PRESET_KINDS)
def test_outputs_and_gradients_of_padded_rows(kind):
    results = []
    for layer in layers_of(kind):
        x = X.to(layer.o_proj.weight.dtype).requires_grad_()
        out = layer(x, valid=VALID)[VALID]
        results.append((out, torch.autograd.grad(out.square().mean(), x)[0][VALID]))
    for got, want in zip(*results, strict=True):
        assert got.dtype is torch.float32
        assert_close(got, want, n=LENGTH * D_MODEL)


@pytest.mark.parametrize("kind", [kind for kind, (_, causal) in PRESET_KINDS.items() if causal])
@torch.no_grad()
def test_pieces_of_padded_rows(kind):
    layer, exact = layers_of(kind)
    want = exact(X.double(), valid=VALID)
    state, outs, at = layer.state(), [], 0
    for piece in (40, 1, 1, 22, 6):
        here = slice(at, at + piece)
        outs.append(layer(X[:, here], valid=VALID[:, here], state=state))
        at += piece
    assert_close(torch.cat(outs, dim=1)[VALID], want[VALID], n=LENGTH * D_MODEL)
