"""The parts of a block: dropout, norms, feed-forward maps, residuals, and positions of tokens."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from suffice import AttentionSpec, preset
from suffice.errors import ConfigError
from suffice.layers import MLP, Attention, Block, CrossBlock, Dropout, RMSNorm, SwiGLU, sinusoidal
from suffice.layers.basic import CACHED_NUMBERS
from suffice.layers.inputs import SharedKV
from suffice.layers.positions import positions
from suffice.testing import assert_close, bits, documents, drawn, normal, padded


@pytest.mark.parametrize("p", [1.0, -0.1, 2.0, float("nan")])
def test_dropout_refuses(p):
    with pytest.raises(ConfigError, match="is not a probability below 1; give 0 <= dropout < 1"):
        Dropout(p)


def test_dropout_zeroes_a_share_and_keeps_the_mean():
    drop, x = Dropout(0.25), torch.ones(4, 50_000)
    out = drop(x)
    assert torch.equal(out.unique(), torch.tensor([0.0, 1 / 0.75]))
    assert_close(
        (out == 0).double().flatten()[:, None], torch.tensor([0.25]).double(), "statistical"
    )
    assert drop.eval()(x) is x
    assert Dropout(0.0)(x) is x
    assert repr(drop) == "Dropout(p=0.25)"


def test_dropout_drops_elements_independently_though_four_share_a_draw():
    torch.manual_seed(3)
    dropped = (Dropout(0.3)(torch.ones(2, 400_002)) == 0).double().flatten()
    fours = dropped[: len(dropped) // 4 * 4].view(-1, 4)
    joint = fours.T @ fours / len(fours)
    want = torch.full((4, 4), 0.3 * 0.3).double().fill_diagonal_(0.3)
    assert (joint - want).abs().max() < 0.005
    assert abs((dropped[:-4] * dropped[4:]).mean() - 0.3 * 0.3) < 0.005


def test_dropout_of_a_probability_near_0_or_1_still_drops_and_still_keeps():
    assert Dropout(1e-9).zeroed == 1
    assert Dropout(1 - 1e-9).zeroed == 2**16 - 1
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        out = Dropout(0.5)(torch.ones(3, 7, dtype=dtype))
        assert out.dtype == dtype
        assert set(out.unique().tolist()) <= {0.0, 2.0}


@pytest.mark.parametrize("parts", [(8,), (4, 4), (2, 5, 1)])
def test_dropout_is_the_same_on_any_number_of_processes(parts):
    """Each process draws the whole mask and takes its rows."""
    x = normal(8, 3, 5, seed=1)
    torch.manual_seed(7)
    global_batch = Dropout(0.5)(x)
    got, offset = [], 0
    for size in parts:
        drop = Dropout(0.5)
        drop.rows = (offset, 8)
        torch.manual_seed(7)
        got.append(drop(x[offset : offset + size]))
        offset += size
    assert_close(torch.cat(got), global_batch, "exact")


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(
    ("activation", "function"),
    [("gelu", F.gelu), ("gelu_tanh", gelu_tanh), ("relu", F.relu), ("tanh", torch.tanh)],
)
def test_mlp(activation, function):
    mlp = drawn(MLP(4, 6, activation=activation).double(), seed=1)
    x = normal(2, 3, 4, seed=2)
    hidden = function(x @ mlp.up.weight.T + mlp.up.bias)
    assert_close(mlp(x), hidden @ mlp.down.weight.T + mlp.down.bias)


def test_mlp_refuses():
    with pytest.raises(ConfigError, match="unknown activation 'gellu'; did you mean 'gelu'"):
        MLP(4, 6, activation="gellu")
    with pytest.raises(ConfigError, match="is not a probability"):
        MLP(4, 6, dropout=1.0)


def test_inner_dropout_of_an_mlp_can_be_left_out():
    mlp = MLP(4, 6, dropout=0.5, inner_dropout=False)
    assert (mlp.inner_dropout.p, mlp.dropout.p) == (0.0, 0.5)
    assert (MLP(4, 6, dropout=0.5).inner_dropout.p) == 0.5
    assert (mlp.up.bias == 0).all()
    assert mlp.up.weight.abs().max() <= (6 / 10) ** 0.5


def block_of(norm, **options) -> Block:
    return drawn(Block(preset("standard", 4, 2), MLP(4, 6), norm=norm, **options).double(), seed=3)


@pytest.mark.parametrize("eps", [1e-6, 0.1])
@pytest.mark.parametrize("with_valid", [False, True])
def test_block(eps, with_valid):
    x = normal(2, 5, 4, seed=1)
    valid = padded(2, 5, "right") if with_valid else None

    def norm_of(block, which, value):
        layer = getattr(block, which)
        return F.layer_norm(value, (4,), layer.weight, layer.bias, eps)

    pre = block_of("pre", eps=eps)
    half = x + pre.attention(norm_of(pre, "attention_norm", x), valid=valid)
    assert_close(pre(x, valid=valid), half + pre.mlp(norm_of(pre, "mlp_norm", half)))
    post = block_of("post", eps=eps)
    half = norm_of(post, "attention_norm", x + post.attention(x, valid=valid))
    assert_close(post(x, valid=valid), norm_of(post, "mlp_norm", half + post.mlp(half)))


def test_block_refuses():
    with pytest.raises(ConfigError, match="unknown norm 'sandwich'.* Legal: both, out, p"):
        Block(preset("standard", 4, 2), MLP(4, 6), norm="sandwich")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("arguments", ["valid", "segments", "both"])
def test_positions_count_real_tokens_of_a_document(arguments, seed):
    valid = bits(3, 9, seed=seed) if arguments != "segments" else None
    segments = documents(3, 9, seed=seed) if arguments != "valid" else None
    got = positions(valid, segments)
    for row in range(3):
        counts: dict[int, int] = {}
        for s in range(9):
            document = 0 if segments is None else int(segments[row, s])
            assert int(got[row, s]) == counts.get(document, 0)
            if valid is None or valid[row, s]:
                counts[document] = counts.get(document, 0) + 1


@pytest.mark.parametrize("bias", [True, False])
def test_swiglu(bias):
    layer = drawn(SwiGLU(4, 6, bias=bias).double(), seed=1)
    x = normal(2, 3, 4, seed=2)
    gate, up = x @ layer.gate.weight.T, x @ layer.up.weight.T
    if bias:
        gate, up = gate + layer.gate.bias, up + layer.up.bias
    want = (gate / (1.0 + torch.exp(-gate)) * up) @ layer.down.weight.T
    assert_close(layer(x), want + layer.down.bias if bias else want)
    assert sum(p.numel() for p in layer.parameters()) == 3 * 4 * 6 + bias * (6 + 6 + 4)


@pytest.mark.parametrize("activation", ["swiglu", "geglu", "geglu_tanh"])
def test_gated_maps_are_the_same_with_and_without_gradients(activation):
    mlp, x = SwiGLU(24, 40, activation=activation), 3 * normal(2, 5, 24, seed=3).float()
    with torch.no_grad():
        assert_close(mlp(x), mlp.double()(x.double()), n=40)
    leaf = x[:1, :2].double().requires_grad_()
    assert torch.autograd.gradgradcheck(mlp, leaf)
    learning = mlp.float()(x)  # float32, where the kernel would take it
    (first,) = torch.autograd.grad(learning.square().sum(), mlp.up.weight, create_graph=True)
    first.square().sum().backward()
    assert mlp.gate.weight.grad.abs().sum() > 0


def test_swiglu_starts_as_the_mlp():
    layer = SwiGLU(40, 60)
    for linear in (layer.gate, layer.up, layer.down):
        assert 0.9 * (6 / 100) ** 0.5 < linear.weight.abs().max().item() <= (6 / 100) ** 0.5
        assert (linear.bias == 0).all()


def test_swiglu_drops_at_its_end():
    layer = SwiGLU(4, 6, dropout=0.5, bias=False)
    out = layer(torch.ones(2, 50, 4))
    assert 0.3 < (out == 0).float().mean() < 0.7
    assert (layer.eval()(torch.ones(1, 1, 4)) != 0).all()
    with pytest.raises(ConfigError, match="is not a probability below 1"):
        SwiGLU(4, 6, dropout=1.0)


@pytest.mark.parametrize("feed", [MLP, SwiGLU])
def test_device_dtype_and_bias(feed):
    layer = feed(4, 6, bias=False, device="meta", dtype=torch.bfloat16)
    assert not any(name.endswith("bias") for name in layer.state_dict())
    for parameter in layer.parameters():
        assert (parameter.device.type, parameter.dtype) == ("meta", torch.bfloat16)


CAUSAL, CROSS = preset("standard", 4, 2, causal=True), preset("efficient", 4, 2)


def cross_block_of(norm, **options) -> CrossBlock:
    block = CrossBlock(CAUSAL, CROSS, MLP(4, 6), norm=norm, eps=0.1, **options)
    return drawn(block.double(), seed=3)


@pytest.mark.parametrize("padding", [False, True])
def test_cross_block(padding):
    x, memory = normal(2, 5, 4, seed=1), normal(2, 7, 4, seed=2)
    valid, real = (padded(2, 5, "right"), padded(2, 7, "left")) if padding else (None, None)

    def norm(block, which, value):
        layer = getattr(block, which)
        return F.layer_norm(value, (4,), layer.weight, layer.bias, 0.1)

    pre = cross_block_of("pre")
    half = x + pre.attention(norm(pre, "attention_norm", x), valid=valid)
    half = half + pre.cross(norm(pre, "cross_norm", half), memory, valid=real)
    want = half + pre.mlp(norm(pre, "mlp_norm", half))
    assert_close(pre(x, memory, source_valid=real, valid=valid), want)
    post = cross_block_of("post")
    half = norm(post, "attention_norm", x + post.attention(x, valid=valid))
    half = norm(post, "cross_norm", half + post.cross(half, memory, valid=real))
    want = norm(post, "mlp_norm", half + post.mlp(half))
    assert_close(post(x, memory, source_valid=real, valid=valid), want)


def test_cross_block_refuses():
    with pytest.raises(ConfigError, match="unknown norm 'sandwich'.* Legal: both, out, p"):
        CrossBlock(CAUSAL, CROSS, MLP(4, 6), norm="sandwich")


def block(**options) -> Block:
    return Block(CAUSAL, MLP(4, 6), **options)


@pytest.mark.parametrize("make", [block, cross_block_of], ids=["self", "cross"])
def test_blocks_of_other_norms(make):
    for norm in ("post", "both"):
        built = make(norm=norm, normalisation="rms")
        norms = {name: type(m) for name, m in built.named_children() if name.endswith("_norm")}
        out = {norms.pop(name) for name in list(norms) if name.endswith("_out_norm")}
        assert set(norms.values()) == {RMSNorm}
        assert out == {RMSNorm if norm == "both" else torch.nn.Identity}
    bare = make(norm="post", bias=False)
    assert not any(name.endswith("_norm.bias") for name in bare.state_dict())
    meta = CrossBlock(CAUSAL, CROSS, MLP(4, 6, device="meta"), device="meta", dtype=torch.half)
    assert {p.device.type for p in meta.parameters()} == {"meta"}
    assert meta.cross_norm.weight.dtype is meta.cross.q_proj.weight.dtype is torch.half


def test_a_block_of_rms_norms():
    built = drawn(block(normalisation="rms", eps=0.1).double(), seed=1)
    x = normal(2, 5, 4, seed=1)

    def norm(value, layer):
        return F.rms_norm(value, (4,), layer.weight, 0.1)

    half = x + built.attention(norm(x, built.attention_norm))
    assert_close(built(x), half + built.mlp(norm(half, built.mlp_norm)))


@pytest.mark.parametrize("norm", ["pre", "post", "both"])
def test_a_block_hands_on_what_the_attention_takes(norm):
    built = drawn(block(norm=norm, eps=0.1).double(), seed=1)
    x, segments = normal(2, 5, 4, seed=1), documents(2, 5, seed=4)
    cut = [
        built(x[row : row + 1, segments[row] == n])
        for row in (0, 1)
        for n in segments[row].unique()
    ]
    assert_close(built(x, segments=segments).flatten(0, 1), torch.cat([c[0] for c in cut]))
    with pytest.raises(TypeError, match="unexpected keyword argument 'sogments'"):
        built(x, sogments=segments)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_rms_norm(dtype):
    layer = RMSNorm(6, eps=0.1, dtype=dtype)
    assert torch.equal(layer.weight, torch.ones(6, dtype=dtype))
    with torch.no_grad():
        layer.weight.copy_(normal(6, seed=1))
    x = normal(2, 3, 6, seed=2, dtype=dtype)
    mean = x.double().square().mean(dim=-1, keepdim=True)
    assert_close(layer(x), x.double() / (mean + 0.1).sqrt() * layer.weight.double())
    assert repr(layer) == "RMSNorm(6, eps=0.1)"
    assert list(layer.state_dict()) == ["weight"]


@pytest.mark.parametrize("d_model", [1, 2, 5, 8])
@pytest.mark.parametrize("length", [0, 1, 7, 300])
def test_values(length, d_model):
    got = sinusoidal(length, d_model, dtype=torch.float64)
    assert got.shape == (length, d_model)
    for t in range(length):
        for i in range(d_model):
            angle = t / 10_000 ** (2 * (i // 2) / d_model)
            want = math.cos(angle) if i % 2 else math.sin(angle)
            assert abs(got[t, i].item() - want) <= 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_lower_types_are_rounded_once(dtype):
    exact = sinusoidal(2000, 64, dtype=torch.float64)
    got = sinusoidal(2000, 64, dtype=dtype)
    assert_close(got, exact.to(dtype), "exact")
    assert sinusoidal(3, 4).dtype is torch.float32


def test_long_tables_are_not_cached():
    length = CACHED_NUMBERS // 4 + 3
    far = sinusoidal(length, 4, dtype=torch.float64)
    assert_close(far[:9], sinusoidal(9, 4, dtype=torch.float64))
    assert abs(far[-1, 0].item() - math.sin(length - 1)) <= 1e-10


def test_a_result_is_its_own():
    before = sinusoidal(9, 4).clone()
    sinusoidal(9, 4).zero_()
    assert_close(sinusoidal(9, 4), before, "exact")


def test_a_table_cached_in_inference_serves_training():
    with torch.inference_mode():
        sinusoidal(11, 6)
    x = torch.zeros(11, 6, requires_grad=True)
    (x * sinusoidal(11, 6)).sum().backward()
    assert_close(x.grad, sinusoidal(11, 6), "exact")


def test_other_devices_and_graphs():
    assert sinusoidal(3, 4, device="meta").device.type == "meta"
    torch._dynamo.reset()
    fast = torch.compile(lambda x: x + sinusoidal(5, 8), backend="eager", fullgraph=True)
    assert_close(fast(torch.zeros(5, 8)), sinusoidal(5, 8))


def test_a_layer_that_shares_needs_its_maker_before_it():
    layer = Attention(AttentionSpec(d_model=8, num_heads=2, shares=0))
    with pytest.raises(ConfigError, match="in order"):
        layer(torch.zeros(1, 3, 8), shared=SharedKV())
