"""Running sums of features and their gradients, against the specification."""

from __future__ import annotations

import pytest
import torch

from suffice.kernels import Elu, Favor
from suffice.ops import OPS, MaskInputs, scan
from suffice.patterns import Causal, Full
from suffice.testing import assert_close
from tests.ops.native.sums import inputs, posed


@pytest.mark.parametrize("pattern", [Full(), Causal()], ids=repr)
@pytest.mark.parametrize("name", ["scan", "native_scan"])
def test_a_masked_key_does_not_change_the_stabilizer(name, pattern):
    """The weights of the visible keys vanish beside that of the masked one, a key of zeros."""
    q, k, v = inputs(9, 9)
    k = 40.0 * k / k.norm(dim=-1, keepdim=True)
    k[:, :, 0] = 0.0
    valid = torch.arange(9).expand(2, 9) > 0
    where = MaskInputs(valid=valid)
    call, parts = posed(q, k, v, Favor(24), pattern, where=where)
    if OPS[name].refuses(call):
        pytest.skip("no native kernels")
    got = OPS[name].run(q, k, v, where, call, parts)[:, :, 1:]
    visible = [x[:, :, 1:] for x in (q, k, v)]
    call, _ = posed(*visible, Favor(24), pattern)
    want = OPS[name].run(*visible, MaskInputs(), call, parts)
    assert want.abs().max() > 0.1
    assert_close(got, want, n=9)


@pytest.mark.parametrize("documents", [1, 3])
@pytest.mark.parametrize("kernel", [Elu(), Favor(24)], ids=repr)
def test_gradients_pass_chunks_of_rising_stabilizers_and_several_documents(kernel, documents):
    q, k, v = inputs(300, 300)
    k = k * torch.linspace(0.1, 6.0, 300)[:, None]
    segments = (torch.arange(300) * documents // 300).expand(2, 300)
    where = MaskInputs(q_segments=segments, k_segments=segments) if documents > 1 else MaskInputs()
    results = []
    for name in ("scan", "reference"):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        call, parts = posed(*leaves, kernel, Causal(), where=where)
        out = OPS[name].run(*leaves, where, call, parts)
        results.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
    for got, want in zip(*results, strict=True):
        assert_close(got, want, n=300)


@pytest.mark.parametrize("length", [9, 128, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("pattern", [Full(), Causal()], ids=repr)
def test_one_piece_for_transforms_is_what_chunks_are(pattern, dtype, length, monkeypatch):
    """In several rows, some of them padded; outputs have the dtype of the inputs."""
    q, k, v = (x.to(dtype) for x in inputs(length, length))
    valid = torch.arange(length).expand(2, length) >= torch.tensor([[0], [length // 3]])
    where = MaskInputs(valid=valid)
    call, parts = posed(q, k, v, Elu(), pattern, where=where)
    want = OPS["scan"].run(q, k, v, where, call, parts)
    monkeypatch.setattr(scan, "is_transformed", lambda: True)
    got = OPS["scan"].run(q, k, v, where, call, parts)
    assert got.dtype is want.dtype is dtype
    assert_close(got[0], want[0], n=length)
    assert_close(got[1, :, length // 3 :], want[1, :, length // 3 :], n=length)
