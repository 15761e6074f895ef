"""The parts around an attention layer: dropout, MLP, block, and the places of tokens."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from suffice.errors import ConfigError
from suffice.layers import MLP, Attention, Block, Dropout
from suffice.layers.inputs import positions, runs
from suffice.presets import preset
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
    with pytest.raises(ConfigError, match="unknown norm 'both'.* Legal: post, pre"):
        Block(preset("standard", 4, 2), MLP(4, 6), norm="both")


def test_block_drops_after_the_attention():
    block = Block(preset("standard", 4, 2), MLP(4, 6), dropout=0.5)
    assert block.dropout.p == 0.5
    assert isinstance(block.attention, Attention)
    x = torch.randn(2, 5, 4)
    assert not torch.equal(block(x), block(x))
    assert torch.equal(block.eval()(x), block(x))


def test_runs():
    assert runs(torch.tensor([[7, 7, 3, 3, 7], [0, 0, 0, 0, 0]])).tolist() == [
        [0, 0, 1, 1, 2],
        [0, 0, 0, 0, 0],
    ]
    assert runs(torch.tensor([[5]])).tolist() == [[0]]


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
