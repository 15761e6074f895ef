"""Streams whose few new positions native kernels read, codes included, against torch's products."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch

from suffice import Attention, AttentionSpec
from suffice.encoders import Efficient
from suffice.memory import Dynamic, Quantised, Rolling, Static
from suffice.mixing import ToeplitzAlignment
from suffice.ops.native import decode
from suffice.patterns import Causal, Strided, Window
from suffice.positions import Alibi, Rope
from suffice.testing import assert_close
from tests.ops.native.codings import isa, needs_kernels, some_isa

__all__ = ["isa", "some_isa"]
pytestmark = needs_kernels
PLAIN = [Dynamic(), Static(64), Rolling(5), Rolling(7, sinks=2)]
CODED = [
    Quantised(block=4, recent=2, group=8),
    Quantised(bits=4, block=4, recent=0, group=8),
    Quantised(value_bits=4, block=4, recent=1, group=8),
    Quantised(Rolling(9), block=4, recent=3, group=5),
    Quantised(Rolling(9, sinks=3), block=4, recent=3),
]
WIDE = [Quantised(block=16, recent=4, group=32), Quantised(bits=4, block=6, recent=1)]
WIDE += [Quantised(value_bits=4, block=16, group=32), Quantised(bits=4, value_bits=8, block=16)]
SPECS = {
    "causal": {},
    "window": {"pattern": Window(6) & Causal(), "position": Rope()},
    "strided": {"pattern": (Window(3) | Strided(4)) & Causal()},
    "alibi": {"position": Alibi(), "num_kv_heads": 2},
    "efficient": {"encoder": Efficient(), "num_kv_heads": 2},
    "mixed": {"encoder": Efficient(), "mixing": ToeplitzAlignment(64)},
}
ONES, PIECES = (9, *[1] * 14), (5, 3, 1, 1, 2, 8, 1, 2)


def valid_of(padding, length):
    if padding == "left":
        return torch.arange(length) >= torch.tensor([[0], [3], [5]])
    return torch.rand(3, length) > 0.2 if padding else None


def streamed(monkeypatch, spec, memory, sizes, padding):
    """Hold a stream against the same in torch, step by step; return how often codes were read."""
    layer, exact = Attention(spec), Attention(spec, impl="matmul")
    exact.load_state_dict(layer.state_dict())
    calls, real = [], decode.attend_coded
    monkeypatch.setattr(decode, "attend_coded", lambda *args: calls.append(1) or real(*args))
    states = layer.state(memory), exact.state(memory)
    x, valid = torch.randn(3, sum(sizes), spec.d_model), valid_of(padding, sum(sizes))
    # inputs are the same, so are codes: what differs is the rounding of queries to 16 bits
    with torch.inference_mode():
        for end, size in zip(accumulate(sizes), sizes, strict=True):
            some = slice(end - size, end)
            where = {} if valid is None else {"valid": valid[:, some]}
            got = layer(x[:, some], state=states[0], **where)
            want = exact(x[:, some], state=states[1], **where)
            assert_close(got, want, n=1 << 15 if memory.lossy else 64)
    assert states[0].length == states[1].length
    return len(calls)


@pytest.mark.parametrize("padding", [None, "left", "inside"])
@pytest.mark.parametrize("memory", PLAIN + CODED, ids=repr)
@pytest.mark.parametrize("name", SPECS)
def test_streams(monkeypatch, some_isa, name, memory, padding):
    mixes = name == "mixed"
    if padding and memory.window is not None and (memory.sinks or padding == "inside"):
        pytest.skip("a rolling memory refuses such padding")
    if mixes and memory.window is not None:
        pytest.skip("the mixing reads everything")
    spec = AttentionSpec(d_model=32, num_heads=4, **{"pattern": Causal(), **SPECS[name]})
    for sizes in (ONES, PIECES):
        calls = streamed(monkeypatch, spec, memory, sizes, padding)
        readable = memory.lossy and not (name == "strided" and memory.window is not None)
        assert (calls > 0) == readable


@pytest.mark.parametrize("encoder", [{}, {"encoder": Efficient()}], ids=["own", "tied"])
@pytest.mark.parametrize("memory", WIDE, ids=repr)
def test_heads_that_share_codes_in_whole_numbers(monkeypatch, isa, memory, encoder):
    for heads, width in ((4, 64), (9, 96), (3, 32)):
        spec = AttentionSpec(
            d_model=heads * width, num_heads=heads, num_kv_heads=1, pattern=Causal(), **encoder
        )
        assert streamed(monkeypatch, spec, memory, (70, 1, 1, 3, 1), None)


def test_products_of_the_largest_codes_of_a_wide_head_fit(isa):
    spec = AttentionSpec(d_model=1024, num_heads=2, num_kv_heads=1, pattern=Causal())
    layer, exact = Attention(spec), Attention(spec, impl="matmul")
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.startswith(("q_proj", "k_proj")):  # all channels alike, so are their codes
                parameter.fill_(1 / 1024 if name.endswith("weight") else 0.0)
    exact.load_state_dict(layer.state_dict())
    states = [some.state(Quantised(block=4, recent=0)) for some in (layer, exact)]
    x = (torch.arange(10) % 2.0)[:, None] + 0.01 * torch.randn(1, 10, 1024)
    with torch.inference_mode():
        for t in range(10):
            steps = [
                some(x[:, t : t + 1], state=state)
                for some, state in zip((layer, exact), states, strict=True)
            ]
            assert_close(*steps, n=1 << 15)


def test_what_cannot_be_read_in_codes_is_unpacked(monkeypatch):
    def never(*args):
        raise AssertionError(args)

    monkeypatch.setattr(decode, "attend_coded", never)
    spec = AttentionSpec(d_model=12, num_heads=4, pattern=Causal())
    for impl, memory in (("fused", CODED[0]), ("auto", Quantised(bits=4))):  # 3 codes: 1.5 bytes
        layer = Attention(spec, impl=impl)
        state = layer.state(memory)
        with torch.inference_mode():
            for _ in range(3):
                layer(torch.randn(1, 1, 12), state=state)
    layer, state = Attention(spec), Attention(spec).state(CODED[0])
    layer(torch.randn(1, 1, 12), state=state).sum().backward()
    assert layer.q_proj.weight.grad is not None


def test_hidden_numbers_that_codes_would_spread(some_isa):
    spec = AttentionSpec(d_model=8, num_heads=2, pattern=(Window(2) | Strided(4)) & Causal())
    layer = Attention(spec)
    state = layer.state(Quantised(block=2, recent=20))
    x = torch.randn(1, 12, 8)
    x[0, 8] = torch.nan
    with torch.inference_mode():
        layer(x[:, :9], state=state)
        layer(x[:, 9:11], state=state)
        assert layer(x[:, 11:], state=state).isfinite().all()


def test_a_compiled_graph_reads_codes_as_eager(some_isa):
    spec = AttentionSpec(d_model=16, num_heads=2, pattern=Window(9) & Causal())
    layer, x = Attention(spec), torch.randn(2, 16, 16)
    memory = Quantised(block=4, recent=2)
    torch._dynamo.reset()
    with torch.no_grad():
        states = layer.state(memory), layer.state(memory)
        graph = torch.compile(layer, backend="aot_eager", dynamic=True)
        for state in states:
            layer(x[:, :10], state=state)
        for at in range(10, 13):
            one = x[:, at : at + 1]
            assert_close(graph(one, state=states[0]), layer(one, state=states[1]), n=64)
    torch._dynamo.reset()


def test_one_position_is_read_in_place(monkeypatch):
    reads, real = [], decode.decode_attention
    monkeypatch.setattr(decode, "decode_attention", lambda *args: reads.append(1) or real(*args))
    layer = Attention(AttentionSpec(d_model=8, num_heads=2, pattern=Causal()), impl="native_decode")
    state = layer.state()
    with torch.inference_mode():
        for size in (5, 1, 1):
            layer(torch.randn(1, size, 8), state=state)
    assert len(reads) == 3
