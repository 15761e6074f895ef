"""A state keeps one dtype, and may be read on outside of inference mode."""

from __future__ import annotations

import pytest
import torch

from suffice import Attention, preset
from suffice.errors import ConfigError
from suffice.layers.state import promote_kv_dtype
from suffice.memory import Dynamic, Quantised, Rolling, Static
from suffice.testing import assert_close, normal

MEMORIES = (Dynamic(), Static(16), Rolling(4, spare=2), Quantised(block=4, recent=4))
WINDOW = preset("mistral", 16, 4, window=4, causal=True)
SUPER = preset("super_attention", 16, 4, causal=True, length=16)
X = normal(2, 9, 16, seed=1).float()
F32, HALF = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("k", "v", "cached", "want"),
    [
        (HALF, HALF, None, torch.bfloat16),
        (F32, HALF, None, torch.float32),
        (F32, HALF, torch.float32, torch.float32),
    ],
    ids=["half", "columns beside a map", "again"],
)
def test_the_wider_dtype_is_kept(k, v, cached, want):
    assert [x.dtype for x in promote_kv_dtype((k, v), cached)] == [want, want]


def test_half_precision_of_autocast_is_widened():
    with torch.autocast("cpu"):
        assert [x.dtype for x in promote_kv_dtype((HALF, HALF), torch.float32)] == [
            torch.float32
        ] * 2


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
@pytest.mark.parametrize("first", [torch.float64, torch.bfloat16], ids=str)
def test_a_piece_of_another_dtype_is_refused(memory, first):
    layer = Attention(WINDOW).eval()
    state = layer.state(memory)
    with torch.no_grad():
        layer.to(first)(X[:, :5].to(first), state=state)
        layer.float()
        message = f"torch.float32 but the cache is {first}"
        with pytest.raises(ConfigError, match=message):
            layer(X[:, 5:], state=state)
        assert state.length == 5
        state.reset()
        got = layer(X[:, :4], state=state)
        assert_close(got, layer(X[:, :4]), n=16)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("memory", [Dynamic(), Quantised(block=4, recent=4)], ids=str)
def test_pieces_with_and_without_autocast(memory, first):
    layer = Attention(SUPER).eval()
    state = layer.state(memory)
    with torch.no_grad():
        with torch.autocast("cpu", enabled=first):
            layer(X[:, :6], state=state)
        with torch.autocast("cpu", enabled=not first):
            got = layer(X[:, 6:], state=state)
        assert (got - layer(X)[:, 6:]).abs().max() < 0.05


@pytest.mark.parametrize("name", ["mistral", "super_attention", "linear", "infini"])
@pytest.mark.parametrize("memory", MEMORIES, ids=str)
def test_what_inference_mode_read_is_read_on(name, memory):
    spec = {"mistral": WINDOW, "super_attention": SUPER}.get(name) or preset(
        name, 16, 4, causal=True, **({"segment": 4} if name == "infini" else {})
    )
    if not spec.kernel.weighs_pairs:
        memory = Dynamic()
    if memory.window is not None and spec.mixing.mixes:
        memory = Static(16)
    layer = Attention(spec).eval()
    state = layer.state(memory)
    with torch.inference_mode():
        layer(X[:, :6], state=state)
    with torch.no_grad():
        got = [layer(X[:, a:b], state=state) for a, b in ((6, 7), (7, 9))]
        if not memory.lossy:
            assert_close(torch.cat(got, dim=1), layer(X)[:, 6:], n=16)
    if memory.window is None:
        layer(X[:, :1], state=state).sum().backward()
        assert layer.q_proj.weight.grad is not None


def test_a_state_is_begun_again_with_other_rows_where_gradients_flow():
    layer = Attention(WINDOW)
    state = layer.state()
    layer(X, state=state)
    state.reset()
    assert state.nbytes == 0  # nor is the graph of what was read kept
    one = X[:1, :4]
    assert_close(layer(one, state=state), layer(one), n=16)
