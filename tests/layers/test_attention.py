"""The layer that composes: what it refuses, shows, keeps and saves."""

from __future__ import annotations

import copy

import pytest
import torch

from suffice import Attention, AttentionSpec, preset
from suffice.errors import ConfigError, MaskError, ShapeError
from suffice.mixing import Alignment
from suffice.patterns import Causal, Full, Window
from suffice.positions import Rope
from suffice.testing import assert_close, bits, documents, drawn, normal, padded

D = 8


def layer_of(**changes) -> Attention:
    spec = AttentionSpec(**{"d_model": D, "num_heads": 2, **changes})
    return drawn(Attention(spec, dtype=torch.float64), seed=2)


X, SOURCE = normal(2, 5, D, seed=1), normal(2, 7, D, seed=2)
NUMBERS, OF_SOURCE = documents(2, 5), documents(2, 7)


@pytest.mark.parametrize(
    ("x", "source", "data", "message"),
    [
        (X[0], None, {}, r"x has shape \[5, 8\]; legal: \[\*, \*, 8\]\. Give \[B, T, d_model\]"),
        (X[..., :7], None, {}, r"x has shape \[2, 5, 7\]"),
        (X[None], None, {}, r"x has shape \[1, 2, 5, 8\]"),
        (X, SOURCE[:1], {}, r"source has shape \[1, 7, 8\]; legal: \[2, \*, 8\]"),
        (X, SOURCE[..., :6], {}, r"source has shape \[2, 7, 6\]"),
        (X, None, {"valid": bits(2, 7, seed=1)}, r"valid has shape \[2, 7\]; legal: \[2, 5\]"),
        (X, SOURCE, {"valid": bits(2, 5, seed=1)}, r"valid has shape \[2, 5\]; legal: \[2, 7\]"),
        (X, None, {"segments": OF_SOURCE}, r"segments of the queries has shape \[2, 7\]"),
        (
            X,
            SOURCE,
            {"segments": NUMBERS, "source_segments": NUMBERS},
            r"segments of the keys has shape \[2, 5\]; legal: \[2, 7\]",
        ),
        (
            X,
            SOURCE,
            {"mask": bits(2, 1, 5, 5, seed=1)},
            r"mask has shape .* legal: \[2, 2, 5, 7\] or \[2, 1, 5, 7\] or \[1, 2, 5, 7\]",
        ),
    ],
)
def test_shapes(x, source, data, message):
    for call in (layer_of(), layer_of().weights):
        with pytest.raises(ShapeError, match=message):
            call(x, source, **data)


def test_an_op_plan_is_of_a_device():
    layer = Attention(AttentionSpec(d_model=8, num_heads=2))
    assert layer.explain(9, device="cuda:1") == layer.explain(9, device="cuda")
    with pytest.raises(ConfigError, match="device='gpu'"):
        layer.explain(9, device="gpu")


def test_a_name_and_sizes_are_a_preset():
    layer = Attention("gqa", 32, 8, num_kv_heads=2, causal=True, impl="matmul", dtype=X.dtype)
    assert layer.spec == preset("gqa", 32, 8, num_kv_heads=2, causal=True)
    assert (layer.impl, layer.k_proj.weight.dtype) == ("matmul", X.dtype)
    assert layer.k_proj.weight.shape == (8, 32)
    for spec, sizes, options, named in (
        ("gqaa", (32, 8), {}, "gqaa"),
        ("gqa", (32, 8), {"kv": 2}, "kv"),
        (layer.spec, (32,), {}, "d_model"),
        (layer.spec, (), {"causal": None}, "causal"),
    ):
        with pytest.raises(ConfigError, match=named):
            Attention(spec, *sizes, **options)


@pytest.mark.parametrize("spec", ["standard", None, {"d_model": 8, "num_heads": 2}])
def test_a_layer_is_of_a_spec(spec):
    with pytest.raises(ConfigError, match=r"spec=.* is a \w+|'standard'.*d_model"):
        Attention(spec)


def test_a_layer_with_a_source_width_of_its_own_needs_a_source():
    layer = layer_of(d_source=6)
    with pytest.raises(ShapeError, match=r"reads a source 6 wide; call layer\(x, source\)"):
        layer(X)
    assert layer(X, SOURCE[..., :6]).shape == X.shape


@pytest.mark.parametrize(
    ("source", "data"),
    [
        (None, {"source_segments": NUMBERS}),
        (None, {"segments": NUMBERS, "source_segments": NUMBERS}),
        (SOURCE, {"segments": NUMBERS}),
        (SOURCE, {"source_segments": OF_SOURCE}),
    ],
)
def test_segments_and_source_segments_go_together(source, data):
    with pytest.raises(ConfigError, match="segments and source_segments go together with source"):
        layer_of()(X, source, **data)


@pytest.mark.parametrize("pattern", [Causal(), Full() & Causal()], ids=repr)
def test_cross_attention_has_no_order(pattern):
    with pytest.raises(ConfigError, match="use Full"):
        layer_of(pattern=pattern)(X, SOURCE)


def test_cross_attention_has_no_common_positions():
    with pytest.raises(ConfigError, match="use NoPosition"):
        layer_of(position=Rope())(X, SOURCE)


@torch.no_grad()
def test_a_mask_of_pairs_holds_within_a_long_window():
    layer = Attention(AttentionSpec(d_model=16, num_heads=1, pattern=Window(64) & Causal()))
    x, mask = normal(1, 512, 16, seed=1).float(), normal(1, 1, 512, 512, seed=2) > 0
    out = layer(x, mask=mask)
    layer.impl = "reference"
    assert_close(out, layer(x, mask=mask), n=64)


def test_a_mixing_refuses_masks():
    mask = bits(2, 1, 5, 5, seed=1)
    with pytest.raises(ConfigError, match="Alignment mixes values before any mask applies"):
        layer_of(mixing=Alignment(9))(X, mask=mask)


@pytest.mark.parametrize("which", ["valid", "mask"])
def test_masks_are_boolean(which):
    shape = (2, 5) if which == "valid" else (2, 1, 5, 5)
    with pytest.raises(MaskError, match=f"{which} has dtype torch.float32"):
        layer_of()(X, **{which: torch.ones(shape)})


@pytest.mark.parametrize("length", [0, 1])
def test_shortest_input(length):
    for layer in (layer_of(), layer_of(pattern=Causal()), layer_of(mixing=Alignment(3))):
        out = layer(X[:, :length])
        assert out.shape == (2, length, D)
        assert layer.weights(X[:, :length]).shape == (2, 2, length, length)


def test_no_rows():
    assert layer_of()(X[:0]).shape == (0, 5, D)
    assert layer_of()(X[:0], SOURCE[:0]).shape == (0, 5, D)


def test_an_empty_source_gives_the_output_bias():
    layer = layer_of()
    assert torch.equal(layer(X, SOURCE[:, :0]), layer.o_proj.bias.expand_as(X))


def test_weights_of_restricted_calls():
    layer = layer_of(pattern=Causal())
    valid, numbers = padded(2, 5, "right"), documents(2, 5, seed=3)
    shares = layer.weights(X, valid=valid, segments=numbers)
    visible = Causal().mask(5, 5) & valid[:, None, :] & valid[:, :, None]
    visible = visible & (numbers[:, :, None] == numbers[:, None, :])
    assert torch.equal(shares > 0, visible[:, None].expand(2, 2, 5, 5))
    assert_close(shares.sum(-1), visible.any(-1)[:, None].double().expand(2, 2, 5))


def test_weights_of_dropout_layers_are_not_dropped():
    layer = layer_of(dropout=0.5).train()
    assert_close(layer.weights(X).sum(-1), torch.ones(2, 2, 5).double())


def test_dropout_drops_weights_and_keeps_their_mean():
    layer = layer_of(dropout=0.5).train()
    plain = copy.deepcopy(layer).eval()(X[:1])
    runs = torch.stack([layer(X[:1]) for _ in range(400)])
    assert_close(runs, plain, "statistical")
    assert (runs[0] - runs[1]).abs().max() > 0.01


def test_device_and_dtype():
    spec = preset("super_attention", D, 2, length=5)
    meta = Attention(spec, device="meta", dtype=torch.bfloat16)
    assert {(p.device.type, p.dtype) for p in meta.parameters()} == {("meta", torch.bfloat16)}
    assert meta(torch.zeros(2, 5, D, device="meta", dtype=torch.bfloat16)).shape == (2, 5, D)


def test_state_dict_names():
    names = set(Attention(preset("super_attention", D, 2, length=5)).state_dict())
    assert names == {
        "q_proj.weight",
        "q_proj.bias",
        "o_proj.weight",
        "o_proj.bias",
        "mixing.weight",
        "mixing.bias",
    }
    assert list(Attention(preset("standard", D, 2)).state_dict()) == [
        f"{part}_proj.{kind}" for part in "qkvo" for kind in ("weight", "bias")
    ]


def test_copies_are_independent():
    layer = layer_of()
    layer(X)
    twin = copy.deepcopy(layer)
    want = layer(X)
    drawn(twin, seed=9)
    assert_close(layer(X), want, "exact")
    assert (twin(X) - want).abs().max() > 0.01


def test_printed_form():
    text = repr(Attention(preset("gqa", D, 2, causal=True)))
    for part in ("d_model=8", "num_heads=2", "num_kv_heads=1", "Causal()", "Standard()"):
        assert part in text


def test_x_may_be_source():
    layer = layer_of()
    assert_close(layer(X, X), layer(X))
    numbers = documents(2, 5)
    assert_close(layer(X, X, segments=numbers, source_segments=numbers), layer(X, segments=numbers))
