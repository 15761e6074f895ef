"""Modules that multiply by torchao against the packed ones they are made of."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from suffice.errors import ConfigError, ShapeError
from suffice.layers.packed import PackedLinear
from suffice.models.packed import TorchaoEmbedding, TorchaoLinear
from suffice.testing import assert_close
from tests.ops.native.codings import drawn_codes

GROUPS = {8: (8, 32, 64), 4: (8, 32, 64)}
CASES = [(bits, group) for bits, groups in GROUPS.items() for group in groups]


def made(bits=8, group=32, bias=True, kind=TorchaoLinear):
    codes = drawn_codes(21, 64, bits, group)[0]
    return kind.of(codes, torch.randn(21) if bias else None)


@pytest.mark.parametrize(("bits", "group"), CASES)
def test_weights_are_not_rounded_again(bits, group):
    module = made(bits, group)
    tensor = module.weight_of_torchao
    assert torch.equal(tensor.dequantize(), module.dequantised())
    assert tensor.target_dtype is {8: torch.int8, 4: torch.int4}[bits]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("bits", "group"), CASES)
def test_products(bits, group, bias):
    module = made(bits, group, bias)
    for shape in ((64,), (1, 64), (2, 3, 64)):
        x = torch.randn(shape, requires_grad=True)
        offset = None if module.bias is None else module.bias.double()
        want = F.linear(x.double(), module.dequantised().double(), offset)
        assert_close(module(x), want, n=64)
        with torch.inference_mode():
            assert_close(module(x), want, n=64)
        (gradient,) = torch.autograd.grad(module(x).sum(), x)
        assert_close(gradient, module.dequantised().sum(0).expand(shape), n=64)
    assert module(torch.empty(0, 64)).shape == (0, 21)
    assert module(torch.randn(2, 64).bfloat16()).dtype is torch.bfloat16
    with pytest.raises(ShapeError, match="x has 63 features; this map reads 64"):
        module(torch.randn(63))


def test_a_tensor_made_in_inference_mode_has_gradients_later():
    module, x = made(), torch.randn(2, 64, requires_grad=True)
    with torch.inference_mode():
        module(x)
    module(x).sum().backward()
    assert x.grad is not None


def test_loading_codes_changes_the_products():
    module, other, x = made(bias=False), made(bias=False), torch.randn(3, 64)
    other.scales.mul_(2)
    assert not torch.equal(module(x), other(x))
    module.load_state_dict(other.state_dict())
    assert torch.equal(module(x), other(x))
    again = copy.deepcopy(module)
    assert again._weight is None
    assert torch.equal(again(x), other(x))
    assert module.double()._weight is None
    assert_close(module(x), other(x), n=64)


def test_a_recorded_graph_is_that_of_the_packed_map(monkeypatch):
    module, x = made(4), torch.randn(3, 64)
    plain = PackedLinear.of(drawn_codes(21, 64, 4, 32)[0], torch.randn(21))
    plain.load_state_dict(module.state_dict())
    with torch.no_grad():
        one, other = (torch.compile(m, backend="eager", fullgraph=True)(x) for m in (module, plain))
    assert torch.equal(one, other)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with torch.no_grad():
        assert torch.equal(module(x), other)


def test_an_embedding_scores_by_torchao_and_reads_rows_as_before():
    module, x = made(8, 32, bias=False, kind=TorchaoEmbedding), torch.randn(2, 64)
    assert_close(module.product(x), x @ module.dequantised().T, n=64)
    assert torch.equal(module(torch.tensor([3, 20])), module.dequantised()[[3, 20]])
    assert (module.kernel, module.native_matrix()) == ("torchao", None)


def test_half_precision_is_refused():
    with pytest.raises(ConfigError, match="8 or 4 bits"):
        TorchaoLinear.of(torch.randn(4, 8).half())
