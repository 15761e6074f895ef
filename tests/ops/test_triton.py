"""Kernels in Triton: on a GPU, or in Triton's interpreter (TRITON_INTERPRET=1) on a CPU."""

from __future__ import annotations

import os

import pytest
import torch

from suffice.errors import UnsupportedError
from suffice.kernels import Elu
from suffice.ops import OPS, AttentionCall, MaskInputs
from suffice.ops import triton as kernels
from suffice.ops.op import Parts
from suffice.patterns import Causal, Full
from suffice.testing import assert_close, normal, padded

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
interpreted = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(kernels.triton is None, reason="Triton is not installed"),
    pytest.mark.skipif(
        DEVICE == "cpu" and not interpreted, reason="neither CUDA nor TRITON_INTERPRET=1"
    ),
]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def inputs(queries, keys, groups, width, dtype=torch.float32, heads=4):
    shapes = ((heads, queries), (groups, keys), (groups, keys))
    return [
        normal(3, *shape, width, seed=seed, dtype=dtype).to(DEVICE)
        for seed, shape in enumerate(shapes)
    ]


def specified(q, k, v, valid=None, *, pattern, kernel=None):
    axes = {} if kernel is None else {"kernel": kernel}
    call = AttentionCall(
        queries=q.shape[2],
        keys=k.shape[2],
        num_heads=q.shape[1],
        num_kv_heads=k.shape[1],
        head_dim=q.shape[3],
        value_dim=v.shape[3],
        scale=0.3,
        pattern=pattern,
        plain=valid is None,
        dtype=torch.float64,
        **axes,
    )
    maps = None if kernel is None else kernel.build(head_dim=q.shape[3], scale=0.3, device=None)
    where = MaskInputs(valid=valid)
    k, v = where.clean(k, v)
    return OPS["reference"].run(
        q.double(), k.double(), v.double(), where, call, Parts(features=maps)
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("one_tensor", [True, False])
@pytest.mark.parametrize(
    ("queries", "keys", "groups", "width", "splits"),
    [(1, 1, 4, 16, None), (1, 203, 1, 24, 3), (3, 150, 2, 20, None), (2, 130, 4, 64, 1)],
)
@torch.no_grad()
def test_decode(queries, keys, groups, width, splits, one_tensor, dtype):
    q, k, v = inputs(queries, keys, groups, width, dtype)
    v = k if one_tensor else v
    for causal in (False, True):
        got = kernels.decode(q, k, v, scale=0.3, causal=causal, splits=splits)
        want = specified(q, k, v, pattern=Causal() if causal else Full())
        assert_close(got, want, n=keys)


@torch.no_grad()
def test_decode_does_not_read_padding():
    q, k, v = inputs(2, 140, 2, 16)
    valid = padded(3, 140, "inside").to(DEVICE)
    valid[2] = False
    k, v = (x.masked_fill(~valid[:, None, :, None], torch.nan) for x in (k, v))
    for value in (v, k):
        got = kernels.decode(q, k, value, scale=0.3, valid=valid, causal=True, splits=2)
        assert_close(got, specified(q, k, value, valid, pattern=Causal()), n=140)
    assert not got[2].any()


@torch.no_grad()
def test_decode_reads_a_cache_as_it_lies():
    q, k, v = inputs(1, 70, 2, 16)
    stored = torch.stack([k, v], dim=3).transpose(1, 2)
    k, v = stored[:, :, :, 0].transpose(1, 2), stored[:, :, :, 1].transpose(1, 2)
    got = kernels.decode(q, k, v, scale=0.3)
    assert_close(got, specified(q, k, v, pattern=Full()), n=70)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("pad", [True, False])
@pytest.mark.parametrize(("length", "groups", "width"), [(1, 4, 16), (64, 1, 8), (150, 2, 40)])
def test_linear_attention(length, groups, width, pad, dtype):
    valid = padded(3, length, "left").to(DEVICE) if pad else None
    leaves = [x.requires_grad_() for x in inputs(length, length, groups, width, dtype)]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    q, k, v = leaves
    phi = Elu().build(head_dim=width, scale=1.0, device=DEVICE)
    got = kernels.linear_attention(phi.queries(q), phi.keys(k)[0], v, valid=valid)
    want = specified(*exact, valid, pattern=Causal(), kernel=Elu())
    slope = torch.ones_like(got)
    assert got.dtype is dtype
    assert_close(got, want, n=8 * length)
    gradients = torch.autograd.grad(got, leaves, slope)
    for a, b in zip(gradients, torch.autograd.grad(want, exact, slope.double()), strict=True):
        assert_close(a, b, n=8 * length)


def test_what_they_do_not_compute_is_refused():
    q, k, v = inputs(1, 4, 2, 16)
    with pytest.raises(UnsupportedError, match="up to 256 features"):
        kernels.decode(q.double(), k, v, scale=1.0)
    with pytest.raises(UnsupportedError, match="up to 64"):
        kernels.decode(q.expand(-1, -1, 40, -1), k, v, scale=1.0)
