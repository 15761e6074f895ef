"""Packed modules against the same matrix unpacked, natively and without the kernels."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torch.nn.functional as F

from suffice.errors import ConfigError, ShapeError
from suffice.layers.packed import Packed, PackedEmbedding, PackedLinear, Scheme
from suffice.ops.native import matrix as op
from suffice.ops.native.matrix import Codes
from suffice.testing import assert_close
from tests.ops.native.codings import coded_inputs, drawn_codes, drawn_inputs, isa, needs_kernels

__all__ = ["isa"]

BITS = (16, 8, 4)


def matrix(bits, outputs=21, inputs=64):
    if bits == 16:
        return torch.randn(outputs, inputs).half()
    return drawn_codes(outputs, inputs, bits, 32)[0]


def made(bits, kind=PackedLinear, bias=True):
    return kind.of(matrix(bits), torch.randn(21) if bias else None)


def by_hand(module, x):
    bias = None if module.bias is None else module.bias.double()
    return F.linear(x.double(), module.dequantised().double(), bias)


@needs_kernels
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", [(64,), (1, 64), (2, 3, 64), (2, 40, 64)])
def test_native_products(isa, bits, shape):
    for bias in (True, False):
        module, x = made(bits, bias=bias), drawn_inputs(*shape, group=32)
        read = x if bits == 16 else coded_inputs(x, 32)
        assert_close(module(x), by_hand(module, read), n=64)
        assert module.kernel == isa
        assert module(torch.empty(0, 64)).shape == (0, 21)


@pytest.mark.parametrize("bits", BITS)
def test_products_without_kernels(no_kernels, bits):
    module, x = made(bits), torch.randn(2, 3, 64)
    assert_close(module(x), by_hand(module, x), n=64)
    assert module.kernel == "torch"
    assert module.native_matrix() is None


@pytest.mark.parametrize("bits", BITS)
def test_gradients_reach_the_inputs(bits):
    """Of the outputs that are computed without gradients, too."""
    module, x = made(bits), torch.randn(2, 3, 64, requires_grad=True)
    out = module(x)
    with torch.no_grad():
        assert_close(out, module(x), "exact")
    out.square().sum().backward()
    want = 2 * (out.detach().double() @ module.dequantised().double())
    assert_close(x.grad, want, n=64 * 21)
    assert not list(module.parameters())


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("bits", BITS)
def test_transformations_of_torch_and_other_dtypes(bits):
    module, x = made(bits), torch.randn(5, 64)
    want = by_hand(module, x)
    assert_close(torch.func.vmap(module)(x), want, n=64)
    tangents = torch.func.jvp(module, (x,), (x,))[1]
    assert_close(tangents, want - module.bias, n=64)
    assert_close(module(x.double()), by_hand(module, x), "same_math", n=64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert module(x).dtype is torch.bfloat16


@needs_kernels
@pytest.mark.parametrize("bits", BITS)
def test_compiled_and_exported(bits):
    module, x = made(bits), torch.randn(2, 3, 64)
    with torch.no_grad():
        want = module(x)
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
        assert_close(compiled(x), want, "exact")
        exported = torch.export.export(module, (x,))
    names = [node.target for node in exported.graph.nodes if node.op == "call_function"]
    assert names == [torch.ops.suffice.packed_linear.default]
    assert_close(exported.module()(x), want, "exact")
    torch.library.opcheck(
        torch.ops.suffice.packed_linear.default,
        (x, *module.stored(), module.bias, bits, 21),
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.parametrize("bits", BITS)
def test_gradients_through_a_compiled_module(bits):
    module, x = made(bits), torch.randn(3, 64, requires_grad=True)
    torch.compile(module, backend="aot_eager", fullgraph=True)(x).sum().backward()
    assert_close(x.grad, module.dequantised().sum(dim=0).expand(3, 64), n=21)


def test_the_operator_without_kernels(no_kernels):
    module, x = made(8), torch.randn(3, 64)
    got = torch.ops.suffice.packed_linear(x, *module.stored(), module.bias, 8, 21)
    assert_close(got, by_hand(module, x), n=64)


@needs_kernels
def test_the_operator_refuses_malformed_tensors():
    x, good = torch.randn(3, 64), drawn_codes(21, 64, 8, 32)[0]
    run = torch.ops.suffice.packed_linear
    with pytest.raises(ShapeError, match="codes of a 40 x 64"):
        run(x, good.codes, good.scales, None, 8, 40)
    with pytest.raises(ShapeError, match="scales of a 21 x 64"):
        run(x, good.codes, good.scales.float(), None, 8, 21)
    with pytest.raises(ShapeError, match="x has 64 features; this matrix reads 128"):
        run(x, good.codes, good.scales, None, 4, 21)
    with pytest.raises(ShapeError, match=r"codes have shape \[2, 1024\] and scales \[2, 2,"):
        run(x, good.codes.flatten(1), good.scales, None, 8, 21)
    with pytest.raises(ConfigError, match="codes of bits=0: give 8 or 4"):
        run(x, good.codes, good.scales, None, 0, 21)
    half = torch.zeros(21, 64).half()
    with pytest.raises(ShapeError, match="a matrix of 21 outputs is read as one of 20"):
        run(x, half, None, None, 16, 20)
    with pytest.raises(ShapeError, match=r"a bias of shape \[20\] for 21 outputs; give one number"):
        run(x, half, None, torch.zeros(20), 16, 21)


@needs_kernels
@pytest.mark.parametrize("bits", BITS)
def test_truncated_buffers_are_refused(bits):
    module, x = made(bits), torch.randn(3, 64)
    module(x)
    name = "weight" if bits == 16 else "codes"
    setattr(module, name, getattr(module, name)[:, :4].contiguous())
    with pytest.raises(ShapeError, match="64 features; this matrix reads|of a 21 x "):
        module(x)
    module = made(bits)
    module(x)
    setattr(module, name, getattr(module, name)[:1])  # at the same address
    with pytest.raises((ShapeError, ConfigError), match="of 1 outputs|codes of a 21 x 64"):
        module(x)
    module = made(bits)
    module.bias = torch.zeros(20)
    with pytest.raises(ShapeError, match=r"a bias of shape \[20\] for 21 outputs"):
        module(x)


@pytest.mark.parametrize("bits", BITS)
def test_rows_of_an_embedding(bits):
    module = made(bits, PackedEmbedding, bias=False)
    ids = torch.tensor([[0, 20], [15, 16]])
    assert_close(module(ids), module.dequantised()[ids], "exact")
    assert_close(module.as_linear()(ids), module(ids), "exact")
    for wrong in (21, -1):
        with pytest.raises(IndexError, match="index out of range"):
            module(torch.tensor([wrong]))


@pytest.mark.parametrize("bits", BITS)
def test_as_linear(bits):
    for bias in (True, False):
        module, x = made(bits, bias=bias), torch.randn(4, 64)
        linear = module.as_linear()
        assert_close(linear(x), by_hand(module, x), n=64)
        assert linear.weight.requires_grad


@pytest.mark.parametrize("bits", BITS)
def test_casts_do_not_change_packed_weights(bits):
    module, x = made(bits), torch.randn(3, 64)
    before, want = copy.deepcopy(module.state_dict()), module(x)
    for cast in (torch.float64, torch.bfloat16, torch.float32):
        module.to(cast)
    for name in ("codes", "scales", "weight"):
        if name in before:
            assert_close(getattr(module, name), before[name], "exact")
    module.bias.copy_(before["bias"])
    assert_close(module(x), want, "exact")
    assert module.bfloat16()(x.bfloat16()).dtype is torch.bfloat16


@pytest.mark.parametrize("bits", BITS)
def test_copies_share_no_memory(bits):
    module, x = made(bits), torch.randn(3, 64)
    want = module(x)
    twin = copy.deepcopy(module)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    for buffer in module.buffers():
        buffer.zero_()
    assert_close(twin(x), want, "exact")
    assert_close(again(x), want, "exact")


@needs_kernels
def test_moved_buffers_are_described_again():
    module, x = made(8), torch.randn(3, 64)
    want = module(x)
    module.share_memory()
    assert_close(module(x), want, "exact")
    other = made(8)
    module.load_state_dict(other.state_dict(), assign=True)
    assert_close(module(x), other(x), "exact")


def test_weights_load_into_an_empty_module():
    for bits in BITS:
        full = made(bits)
        empty = PackedLinear(21, 64, full.scheme, bias=True, device="meta")
        assert empty.kernel == "torch"
        empty.load_state_dict(full.state_dict(), assign=True)
        x = torch.randn(2, 64)
        assert_close(empty(x), full(x), "exact")
        assert "64 -> 21" in repr(full)
        assert full.nbytes == sum(t.nbytes for t in full.state_dict().values())


def test_wrong_shapes_and_dtypes_are_refused():
    with pytest.raises(ShapeError, match="x has 63 features; this map reads 64"):
        made(8)(torch.randn(2, 63))
    with pytest.raises(ShapeError, match=r"the matrix is torch\.float32; give float16, or codes"):
        Packed.of(torch.randn(3, 4))
    with pytest.raises(ConfigError, match="group=32 for 40 inputs"):
        Packed(3, 40, Scheme(bits=4, group=32))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_refused(bits, odd):
    module = made(bits)
    module.check()
    name = "weight" if bits == 16 else "scales"
    getattr(module, name).flatten()[3] = odd
    with pytest.raises(ConfigError, match=f"{name} holds NaN"):
        module.check()


@needs_kernels
def test_many_rows_of_halves_are_unpacked():
    module = made(16)
    for rows in (op.UNPACK_ROWS - 1, op.UNPACK_ROWS):
        x = torch.randn(rows, 64)
        assert op.is_small_batch(x, 16) == (rows < op.UNPACK_ROWS)
        assert_close(module(x), by_hand(module, x), n=64)


def test_codes_are_not_copied():
    codes = matrix(4)
    module = PackedLinear.of(codes)
    assert isinstance(codes, Codes)
    assert module.codes is codes.codes
    assert module.scheme == Scheme(bits=4, group=32)


@pytest.mark.parametrize(
    ("inputs", "bits", "group"),
    [
        (768, 8, 128),
        (288, 8, 96),
        (4, 8, 4),
        (130 * 4, 8, 104),
        (2048, 4, 32),
        (24, 4, 24),
        (40, 4, 8),
        (7, 16, None),
    ],
)
def test_the_widest_group_that_fits(inputs, bits, group):
    assert Scheme.of(inputs, bits) == Scheme(bits=bits, group=group)


def test_json_and_names():
    for scheme, name in ((Scheme(bits=16), "float16"), (Scheme(bits=4, group=32), "int4/32")):
        assert str(scheme) == name
        assert Scheme.from_json(scheme.to_json()) == scheme
    assert Scheme(bits=16).to_json() == {"bits": 16}


def test_illegal_schemes_are_refused():
    with pytest.raises(ConfigError, match="bits=3"):
        Scheme(bits=3)
    with pytest.raises(ConfigError, match="bits=16 with group=32"):
        Scheme(bits=16, group=32)
    with pytest.raises(ConfigError, match="bits=8 with group=None"):
        Scheme(bits=8)
    with pytest.raises(ConfigError, match="group='32'"):
        Scheme(bits=8, group="32")
    with pytest.raises(ConfigError, match="12 inputs"):
        Scheme.of(12, 4)
    with pytest.raises(ConfigError, match="group=64 for 96 inputs"):
        Scheme.of(96, 8, 64)


@pytest.mark.parametrize("data", [None, 8, {}, {"group": 32}, {"bits": 8, "group": 4, "more": 1}])
def test_other_data_is_refused(data):
    with pytest.raises(ConfigError, match="not a scheme"):
        Scheme.from_json(data)
