"""Packed maps whose products torchao computes."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
import torch.nn.functional as F

from suffice import preset
from suffice.errors import ConfigError, ShapeError
from suffice.generate import generate
from suffice.layers.packed import Packed, PackedLinear
from suffice.models import LMConfig, folder
from suffice.models import packed as packed_models
from suffice.models.packed import TorchaoEmbedding, TorchaoLinear
from suffice.quantise import quantise, unpack
from suffice.testing import assert_close, drawn
from suffice.text import Characters
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


SIZES = {"vocabulary_size": 30, "length": 16, "d_model": 64, "depth": 2, "mlp_width": 96}
TEXT = torch.arange(24).view(2, 12)
with_torchao = packed_models.with_torchao


@pytest.fixture
def absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)


def packed(bits=8, **changes):
    spec = preset("efficient", 64, 4, causal=True)
    lm = drawn(LMConfig(**SIZES | changes).build(spec), seed=3).eval()
    quantise(lm, bits)
    return lm


def maps(lm):
    return {name: one for name, one in lm.named_modules() if isinstance(one, Packed)}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
@torch.no_grad()
def test_outputs_are_those_of_the_unpacked_model(bits, tied):
    lm = packed(bits, tied=tied, activation="swiglu", norm="rms")
    near, exact = lm(TEXT), copy.deepcopy(lm)
    unpack(exact)
    names = list(maps(lm))
    assert with_torchao(lm) == {}
    assert list(maps(lm)) == names
    assert {one.kernel for one in maps(lm).values()} == {"torchao"}
    assert {type(one) for one in maps(lm).values()} == {TorchaoLinear, TorchaoEmbedding}
    assert_close(lm(TEXT), exact(TEXT), n=96)
    assert (lm(TEXT) - near).norm() <= 3e-2 * near.norm()  # whose inputs are in 8 bits, too


def test_embeddings_and_half_precision_do_not_change():
    lm = packed(16)
    with pytest.raises(ConfigError, match="no codes"):
        with_torchao(lm)
    lm = packed(4)
    lm.blocks[0].mlp.up = PackedLinear.of(lm.blocks[0].mlp.up.dequantised().half())
    rows = lm.embedding.tokens(TEXT)
    assert with_torchao(lm) == {"blocks.0.mlp.up": "half precision is not a scheme of torchao"}
    assert torch.equal(lm.embedding.tokens(TEXT), rows)
    assert lm.blocks[0].mlp.up.kernel != "torchao"


def test_saving_is_independent_of_torchao(tmp_path):
    lm, tokenizer = packed(4), Characters("abc")
    folder.save(tmp_path / "a", lm, tokenizer)
    with_torchao(lm)
    lm(TEXT)
    folder.save(tmp_path / "b", lm, tokenizer)
    configs = [(tmp_path / name / folder.CONFIG).read_bytes() for name in "ab"]
    assert configs[0] == configs[1]
    once, again = (folder.load(tmp_path / name)[0] for name in "ab")
    state = again.state_dict()
    assert state.keys() == once.state_dict().keys()
    assert all(torch.equal(state[name], one) for name, one in once.state_dict().items())
    assert not any(isinstance(one, TorchaoLinear) for one in again.modules())


@pytest.fixture
def on_cuda(monkeypatch):
    """Let a CPU count as the device that takes torchao by itself."""
    monkeypatch.setattr(packed_models, "DEVICES", ("cpu",))


def test_loading_uses_torchao_on_cuda_and_reports_it(tmp_path, on_cuda):
    folder.save(tmp_path, packed(8), Characters("abc"))
    lm, _, _ = folder.load(tmp_path)
    assert {one.kernel for one in maps(lm).values()} == {"torchao"}
    result = generate(lm, [[1, 2]], max_new_tokens=3)
    assert result.steps.startswith("torch (")
    assert result.steps.endswith("), packed maps by torchao")
    with pytest.raises(ConfigError, match="impl='native' is not possible"):
        generate(lm, [[1, 2]], max_new_tokens=3, impl="native")


def test_loading_without_torchao_reports_why(tmp_path, on_cuda, absent):
    folder.save(tmp_path, packed(8), Characters("abc"))
    lm, _, _ = folder.load(tmp_path)
    steps = generate(lm, [[1, 2]], max_new_tokens=3, impl="torch").steps
    assert steps.startswith("torch (asked for), packed maps by torch, which unpacks each at each ")
    assert "[cuda]" in steps
    with pytest.raises(ConfigError, match="torchao cannot be imported"):
        with_torchao(lm)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@torch.no_grad()
def test_cuda_gives_the_outputs_of_the_cpu(tmp_path):
    lm = packed(4)
    folder.save(tmp_path, lm, Characters("abc"))
    there, _, _ = folder.load(tmp_path, "cuda")
    assert {one.kernel for one in maps(there).values()} == {"torchao"}
    unpack(lm)
    assert_close(there(TEXT.cuda()).cpu(), lm(TEXT), n=96)
