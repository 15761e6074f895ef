"""No path silently leaves torch's fused kernel, forward or backward."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from suffice import Attention, AttentionSpec, attend, preset
from suffice.patterns import Causal, Full
from suffice.testing import bits, documents, padded

pytestmark = pytest.mark.usefixtures("no_kernels")

FORWARD = "aten::_scaled_dot_product_flash_attention_for_cpu"
BACKWARD = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
MATH = "aten::_scaled_dot_product_attention_math"


def ran(call) -> set[str]:
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        call()
    return {event.key for event in profiled.key_averages()}


def heads(batch, number, length, width, dtype, *, layout):
    """Heads as an op meets them: made as such, or a view of something wider."""
    if layout == "dense":
        return torch.randn(batch, number, length, width, dtype=dtype)
    if layout == "sparse":
        return torch.randn(batch, number, length, 2 * width, dtype=dtype)[..., ::2]
    flat = torch.randn(batch, length, number * width, dtype=dtype)
    if layout == "wide":
        flat = torch.randn(batch, length, 2 * number * width, dtype=dtype)[..., : number * width]
    return flat.unflatten(-1, (number, width)).transpose(1, 2)


CALLS = {
    "plain": {},
    "causal": {"pattern": Causal()},
    "and": {"pattern": Full() & Causal()},
    "valid": {"valid": padded(2, 9, "left")},
    "causal-valid": {"pattern": Causal(), "valid": padded(2, 9, "inside")},
    "mask": {"mask": bits(2, 1, 9, 9, seed=1)},
    "mask-of-one-row": {"mask": bits(1, 1, 9, 9, seed=1)},
    "mask-per-head": {"mask": bits(2, 4, 9, 9, seed=1)},
    "mask-per-head-of-one-row": {"mask": bits(1, 4, 9, 9, seed=1)},
    "documents": {"segments": (documents(2, 9), documents(2, 9))},
    "scale": {"scale": 0.3},
}


@pytest.mark.parametrize("name", CALLS)
def test_the_fused_kernel_runs(name):
    """In the layouts, head groups and dtypes that vary from call to call."""
    at = list(CALLS).index(name)
    layout = ("dense", "view", "wide", "sparse")[at % 4]
    impl, groups = (("fused", 4), ("fused", 2), ("folded", 2), ("folded", 1))[at % 3]
    dtype = (torch.float32, torch.bfloat16)[at % 2]
    q, k, v = (
        heads(2, n, 9, width, dtype, layout=layout).requires_grad_()
        for n, width in ((4, 8), (groups, 8), (groups, (8, 6, 12)[at % 3]))
    )
    outs = []
    names = ran(lambda: outs.append(attend(q, k, v, impl=impl, **CALLS[name])))
    assert FORWARD in names
    assert MATH not in names
    assert BACKWARD in ran(lambda: outs[0].float().square().sum().backward())


@pytest.mark.parametrize("impl", ["fused", "folded"])
def test_causal_of_unequal_lengths(impl):
    for queries, keys in ((1, 9), (9, 3), (40, 600)):
        q, k = torch.randn(2, 4, queries, 8), torch.randn(2, 2, keys, 8)
        assert FORWARD in ran(lambda q=q, k=k: attend(q, k, k, impl=impl, pattern=Causal()))


@pytest.mark.parametrize("name", ["standard", "gqa", "super_attention", "sliding_window"])
@pytest.mark.parametrize("masks", [{}, {"valid": padded(2, 20, "left")}], ids=["plain", "padded"])
def test_layers_choose_it(name, masks):
    options = {"length": 20} if name == "super_attention" else {}
    layer = Attention(preset(name, 32, 4, **options))
    x = torch.randn(2, 20, 32, requires_grad=True)
    names = ran(lambda: layer(x, **masks).sum().backward())
    assert {FORWARD, BACKWARD} <= names
    assert MATH not in names
    assert layer.explain(20, plain=not masks).startswith("fused: ")


class Allocations(TorchDispatchMode):
    """The largest memory any operation's result lives in, bytes."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        masks = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in masks:
                    self.largest = max(self.largest, storage.nbytes())
        return out


@pytest.mark.parametrize("impl", ["fused", "folded", "matmul", "auto"])
@pytest.mark.parametrize("groups", [1, 2])
def test_shared_keys_are_never_expanded(impl, groups):
    """One query, 8 heads, few key/value heads: nothing as large as the keys may be made."""
    q, k, v = torch.randn(1, 8, 1, 64), *(torch.randn(1, groups, 512, 64) for _ in range(2))
    with Allocations() as allocations:
        attend(q, k, v, impl=impl)
    assert 0 < allocations.largest <= 8 * 512 * 4


@pytest.mark.parametrize("causal", [False, True])
def test_memory_grows_with_the_length_not_its_square(causal):
    spec = AttentionSpec(d_model=16, num_heads=2, **({"pattern": Causal()} if causal else {}))
    layer, x = Attention(spec), torch.randn(1, 1024, 16, requires_grad=True)
    with Allocations() as allocations:
        layer(x).square().sum().backward()
    assert 0 < allocations.largest <= 4 * 1024 * 16 * 4
    with Allocations() as allocations:
        layer.weights(x)
    assert allocations.largest >= 1024 * 1024 * 8


def test_one_causal_query_needs_no_mask():
    q, k = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 4096, 8)
    with Allocations() as allocations:
        attend(q, k, k, pattern=Causal())
    assert allocations.largest < 4096
