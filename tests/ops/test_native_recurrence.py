"""The native recurrences, with every set of instructions, against the recurrence step by step."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F

from suffice import Attention, AttentionSpec
from suffice.combine import Gated
from suffice.errors import UnsupportedError
from suffice.kernels import Decayed, Delta
from suffice.ops import choose, explain, register_flops
from suffice.ops.call import AttentionCall
from suffice.ops.native import library
from suffice.ops.native import recurrence as native
from suffice.ops.recurrence import Sequence, stepwise
from suffice.patterns import Causal
from suffice.testing import assert_close, documents, drawn, normal, padded
from tests.ops.native.codings import isa, some_isa

__all__ = ["isa", "some_isa"]

pytestmark = pytest.mark.skipif(not library.available(), reason="no native kernels were built")
LENGTHS = (1, 2, 7, 8, 31, 32, 33, 65, 100)
WIDTHS = ((64, 64), (3, 5), (40, 24), (17, 33))
KINDS = (("none", True), ("head", True), ("none", False), ("head", False), ("feature", False))


def posed(length, width, wide, decays, corrects, *, strength=0.1, split=False, rows=2, heads=2):
    """Inputs of a recurrence and a state before them."""
    generator = torch.Generator().manual_seed(length + width)
    made = [
        torch.randn(rows, length, heads, size, generator=generator).transpose(1, 2)
        for size in (width, width, wide)
    ]
    q, k = (F.normalize(x, dim=-1) for x in made[:2])
    logs = {"none": 0, "head": 1, "feature": width}[decays]
    decay = -strength * torch.rand(rows, heads, length, logs, generator=generator)
    beta = torch.rand(rows, heads, length, 1, generator=generator) if corrects else None
    parts = documents(rows, length) // 9 if split else None
    state = torch.randn(rows, heads, width, wide, generator=generator)
    return Sequence(q, k, made[2], decay if logs else None, beta, parts), state


def doubled(data):
    return Sequence(*(None if x is None else x.double() for x in data[:5]), data.documents)


def differentiated(run, data, state):
    """Outputs, state and the gradients of all that is given."""
    leaves = [
        None if x is None else x.detach().clone().requires_grad_() for x in (*data[:5], state)
    ]
    found = run(Sequence(*leaves[:5], data.documents), leaves[5])
    weights = [normal(*x.shape, seed=n).to(x.dtype) for n, x in enumerate(found)]
    total = sum((x * w).sum() for x, w in zip(found, weights, strict=True))
    return [*found, *torch.autograd.grad(total, [x for x in leaves if x is not None])]


def assert_as_specified(data, state, **where):
    got = differentiated(native.scan, data, state)
    want = differentiated(stepwise, doubled(data), state.double())
    for one, other in zip(got, want, strict=True):
        assert_close(one, other, **where)
    with torch.no_grad():
        for one, other in zip(native.scan(data, state), want[:2], strict=True):
            assert_close(one, other.detach(), **where)


@pytest.mark.parametrize(("decays", "corrects"), KINDS)
def test_every_length_and_width(isa, decays, corrects):
    for i, (length, widths) in enumerate(product(LENGTHS, WIDTHS)):
        if i % 3 == len(isa) % 3 or i % 7 == 0:
            assert_as_specified(*posed(length, *widths, decays, corrects), n=length)


@pytest.mark.parametrize(("decays", "corrects"), KINDS)
def test_documents_and_any_decay(some_isa, decays, corrects):
    for strength in (1e-4, 300.0):
        inputs = posed(100, 20, 33, decays, corrects, strength=strength, split=True)
        assert_as_specified(*inputs, n=100)


def test_a_small_decay_after_a_large_one_keeps_its_digits(some_isa):
    data, state = posed(64, 8, 8, "head", corrects=True, strength=1e-3)
    data.log_decay[:, :, ::5] = -3000.0
    assert_as_specified(data, state, n=64)


@torch.no_grad()
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_part_heads_and_columns(some_isa, threads):
    used = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for kind in KINDS:
            data, state = posed(700, 64, 70, *kind, rows=1, heads=1)
            for one, other in zip(
                native.scan(data, state), stepwise(doubled(data), state.double()), strict=True
            ):
                assert_close(one, other, n=700)
    finally:
        torch.set_num_threads(used)


@torch.no_grad()
def test_nothing_is_summed_of_nothing():
    data, state = posed(0, 4, 4, "head", corrects=True)
    out, end = native.scan(data, state)
    assert out.shape == (2, 2, 0, 4)
    assert torch.equal(end, state)


@pytest.mark.parametrize("kernel", [Decayed("token"), Decayed("feature"), Delta()], ids=repr)
@pytest.mark.parametrize("data", ["plain", "padded", "packed"])
def test_layers_are_those_of_the_reference(kernel, data):
    spec = AttentionSpec(d_model=12, num_heads=2, pattern=Causal(), kernel=kernel)
    x, where = normal(2, 80, 12, seed=4), {}
    if data == "padded":
        where["valid"] = padded(2, 80, "inside")
    if data == "packed":
        where["segments"] = documents(2, 80) // 9
    found, weights = [], drawn(Attention(spec, dtype=torch.float64), seed=1).state_dict()
    for impl, dtype in (("native_recurrence", torch.float32), ("reference", torch.float64)):
        layer = Attention(spec, impl=impl, dtype=dtype)
        layer.load_state_dict(weights)
        own = x.to(dtype).requires_grad_()
        out = layer(own, **where)
        grads = torch.autograd.grad(out.square().sum(), [own, *layer.parameters()])
        found.append([out.detach(), *grads])
    for got, want in zip(*found, strict=True):
        assert_close(got, want, n=80)


def test_a_graph_holds_the_kernels():
    data, state = posed(40, 8, 8, "head", corrects=True, split=True)

    def summed(*tensors):
        return native.scan(Sequence(*tensors[:6]), tensors[6])

    compiled = torch.compile(summed, fullgraph=True, backend="aot_eager")
    got = differentiated(lambda d, s: compiled(*d, s), data, state)
    for one, other in zip(got, differentiated(native.scan, data, state), strict=True):
        assert_close(one, other)


def test_flops_are_counted():
    from torch.utils.flop_counter import FlopCounterMode

    register_flops()
    data, state = posed(64, 8, 8, "head", corrects=True)
    with FlopCounterMode(display=False) as counter:
        native.scan(data, state)
    spec = AttentionSpec(d_model=16, num_heads=2, pattern=Causal(), kernel=Delta())
    assert 0 < counter.get_total_flops() < 2 * spec.cost(64).flops


def test_it_is_chosen_for_float32_and_says_why_not():
    spec = AttentionSpec(d_model=16, num_heads=2, pattern=Causal(), kernel=Delta())
    call = AttentionCall.of(spec, 9, 9)
    assert choose(call).name == "native_recurrence"
    assert choose(call, "recurrence").name == "recurrence"
    double = AttentionCall.of(spec, 9, 9, dtype=torch.float64)
    assert choose(double).name == "recurrence"
    assert "not native_recurrence: its kernels read" in explain(double)
    with pytest.raises(UnsupportedError, match="float64"):
        choose(double, "native_recurrence")


def test_decays_of_features_with_a_delta_rule_are_refused():
    data, state = posed(9, 8, 8, "feature", corrects=True)
    with pytest.raises(UnsupportedError, match="without beta"):
        native.scan(data, state)


ONE_TOKEN = [
    Decayed(),
    Decayed(decays=(0.5, 1.0, 0.3, 0.9)),
    Decayed("token"),
    Decayed("token", convolution=2),
    Decayed("feature", convolution=3),
    Delta(),
    Delta(gated=False),
    Delta(convolution=4),
]
PIECES = (1, 1, 1, 4, 1, 1, 1, 2)  # tokens of each call


def layers_of(kernel, *, groups=4, width=16):
    """The layer in float32, and the reference in float64, with the same weights."""
    spec = AttentionSpec(
        d_model=4 * width,
        num_heads=4,
        num_kv_heads=groups,
        pattern=Causal(),
        kernel=kernel,
        combine=Gated(activation="silu", norm=True),
    )
    exact = drawn(Attention(spec, impl="reference", dtype=torch.float64), seed=1)
    layer = Attention(spec)
    layer.load_state_dict(exact.state_dict())
    return layer, exact


def streamed(layer, x, valid=None, pieces=PIECES):
    """The outputs of pieces of x, and the state after them."""
    state, outs, at = layer.state(), [], 0
    for length in pieces:
        where = {} if valid is None else {"valid": valid[:, at : at + length]}
        outs.append(layer(x[:, at : at + length], state=state, **where))
        at += length
    return torch.cat(outs, dim=1), state


@torch.no_grad()
@pytest.mark.parametrize("strength", [1.0, 40.0])
@pytest.mark.parametrize("kernel", ONE_TOKEN, ids=repr)
def test_single_tokens_of_a_layer_are_those_of_the_reference(isa, kernel, strength):
    """Whole vectors of columns and parts of one, keys of several heads, padding, rows that move,
    gates in their range and at its ends.
    """
    length = sum(PIECES)
    terms = int(length * strength**2)  # roundings of logits grow with them
    groups, width = ((4, 16), (2, 40), (1, 3))[(ONE_TOKEN.index(kernel) + len(isa)) % 3]
    layer, exact = layers_of(kernel, groups=groups, width=width)
    for one in (layer, exact):
        for name, weight in one.recurrence.gates.named_parameters():
            weight.mul_(strength if "proj" in name else 1.0)
    x = normal(3, length, 4 * width, seed=4)
    for valid in (None, padded(3, length, "inside", seed=2)):
        got, state = streamed(layer, x.float(), valid)
        want, reached = streamed(exact, x, valid)
        real = slice(None) if valid is None else valid
        assert_close(got[real], want[real], n=terms)
        for one, other in zip(state.recurrent, reached.recurrent, strict=True):
            if one is not None:
                assert_close(one, other, n=terms)


ROWS, HEADS, GROUPS, WIDTH, EPS = 4, 6, 2, 5, 1e-6
OF_HEAD, OF_TOKEN, OF_FEATURE = 1, 2, 3  # decays; 0: none
READ = ("q", "k", "v", "decay", "beta")


def by_formula(tokens, taps, decays, corrects, sums, history):
    """Outputs of a token, head by head in float64; states and histories change in place."""
    q, k, v, decay, beta = (tokens[name] for name in READ)
    outs = torch.zeros(ROWS, HEADS, v.shape[2], dtype=torch.float64)
    for row in tokens["valid"].nonzero()[:, 0].tolist():
        x = torch.cat([part[row].flatten() for part in (q, k, v)])
        finite = x.isfinite().all()
        x = x if finite else torch.zeros_like(x)
        if taps:
            window = torch.cat([history[row], x[None]])
            x, history[row] = F.silu((window.T * tokens["weights"]).sum(1)), window[1:]
        parts = x.split([part[row].numel() for part in (q, k, v)])
        queries, keys, values = (x.view_as(y[row]) for x, y in zip(parts, (q, k, v), strict=True))
        for head in range(HEADS):
            query, group = queries[head], head * GROUPS // HEADS
            key, value, state = keys[group], values[group], sums[row, head]
            step = F.softplus(decay[row, head, 0] + tokens["biases"][head])
            if decays == OF_HEAD:
                state *= tokens["rates"][head].exp()
            if decays == OF_TOKEN:
                state *= (-tokens["rates"][head].exp() * step).exp()
                value = value if corrects else step * value
            if decays == OF_FEATURE:
                state *= decay[row, head].sigmoid()[:, None] ** (1 / 16)
            if corrects:
                query, key = (y / (y.square().sum() + EPS).sqrt() for y in (query, key))
                value = beta[row, head].sigmoid() * (value - key @ state)
            state += key[:, None] * value
            outs[row, head] = 0.3 * query @ state
        if not finite:
            outs[row], sums[row] = torch.nan, torch.nan
    return outs


@pytest.mark.parametrize("wide", [7, 16])
@pytest.mark.parametrize("taps", [0, 3])
@pytest.mark.parametrize(("decays", "corrects"), list(product(range(4), (False, True)))[:-1])
def test_single_tokens_are_those_of_the_formula(isa, decays, corrects, taps, wide):
    """Unequal rows, heads, groups and widths; padding, keys of zeros, and a value that is NaN."""
    channels, logits = HEADS * WIDTH + GROUPS * (WIDTH + wide), WIDTH ** (decays == OF_FEATURE)
    sizes = {
        "q": (HEADS, WIDTH), "k": (GROUPS, WIDTH), "v": (GROUPS, wide), "decay": (HEADS, logits),
        "beta": (HEADS,), "sums": (HEADS, WIDTH, wide), "history": (max(taps - 1, 0), channels),
    }  # fmt: skip
    tokens = {
        n: normal(5, ROWS, *size, seed=i).float() for i, (n, size) in enumerate(sizes.items())
    }
    fixed = {"weights": normal(channels, taps, seed=7), "rates": -normal(HEADS, seed=8).abs()}
    fixed = {n: x.float() for n, x in (fixed | {"biases": normal(HEADS, seed=9)}).items()}
    sums, history = tokens.pop("sums")[0].clone(), tokens.pop("history")[0].clone()
    tokens["k"][:, 0] = history[0, :, HEADS * WIDTH :][:, : GROUPS * WIDTH] = 0.0
    tokens["v"][3, 3, 0, 2] = torch.nan
    tokens["valid"] = torch.ones(5, ROWS, dtype=torch.bool)
    tokens["valid"][1, 1] = tokens["valid"][2:4, 2] = False
    exact_sums, exact_history = sums.double(), history.double()
    structure = native.token_structure(HEADS, GROUPS, WIDTH, wide, taps, decays, corrects, 0.3, EPS)
    for i in range(5):
        token, out = {n: x[i] for n, x in tokens.items()}, torch.empty(ROWS, HEADS, wide)
        inputs = [*(token[n] for n in READ), *fixed.values(), token["valid"]]
        native.token(structure, ROWS, *inputs, history, sums, out)
        exact = {n: x if n == "valid" else x.double() for n, x in (token | fixed).items()}
        want = by_formula(exact, taps, decays, corrects, exact_sums, exact_history)
        found = [(out, want), (sums, exact_sums), (history, exact_history)]
        for one, other in found[: 2 + (taps > 0)]:
            assert torch.equal(one.isnan(), other.isnan())
            assert_close(one.nan_to_num(), other.nan_to_num(), n=channels)


@torch.no_grad()
@pytest.mark.parametrize("kernel", [Delta(convolution=3), Decayed("token")], ids=repr)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_single_tokens_from_one_that_is_not_finite_on_are_nan(some_isa, kernel, bad):
    layer, _ = layers_of(kernel)
    x = normal(2, 6, 64, seed=3).float()
    want = streamed(layer, x, pieces=[1] * 6)[0]
    x[1, 2, 5] = bad
    got, state = streamed(layer, x, pieces=[1] * 6)
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1, :2], want[1, :2])
    assert got[1, 2:].isnan().all()
    assert state.recurrent.sums[1].isnan().all()
    assert layer(x)[1, 2:].isnan().all()


def test_single_tokens_change_no_state_that_a_gradient_needs():
    layer, _ = layers_of(Delta(convolution=3))
    x, state = normal(1, 5, 64, seed=3).float(), layer.state()
    layer(x[:, :3], state=state)
    held = state.recurrent
    before = [part.detach().clone() for part in held]
    with torch.no_grad():
        layer(x[:, 3:4], state=state)
        for part, was in zip(held, before, strict=True):
            assert torch.equal(part, was)
        moved = state.recurrent.sums
        layer(x[:, 4:], state=state)
    assert state.recurrent.sums is moved


def test_one_token_is_chosen_where_nothing_is_recorded():
    spec = AttentionSpec(d_model=16, num_heads=2, pattern=Causal(), kernel=Delta())
    with torch.no_grad():
        assert choose(AttentionCall.of(spec, 1, 1)).name == "native_token"
        assert choose(AttentionCall.of(spec, 1, 1, dtype=torch.float16)).name == "native_recurrence"
        assert "it reads one token, not 2" in explain(AttentionCall.of(spec, 2, 2))
    assert choose(AttentionCall.of(spec, 1, 1)).name == "native_recurrence"
