"""A layer that reads a sequence in pieces gives what it gives in one call."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suffice import Attention, AttentionSpec, preset
from suffice.encoders import Efficient, HeadRMS, Latent, Optimised, Standard
from suffice.errors import ConfigError, ShapeError
from suffice.kernels import Elu, Favor
from suffice.layers.state import promote_kv_dtype
from suffice.memory import Dynamic, Quantised, Rolling, Static
from suffice.mixing import Alignment, BandedAlignment, BlockAlignment, ToeplitzAlignment
from suffice.patterns import Block, Causal, Dilated, Full, Global, Random, Window
from suffice.positions import Alibi, Rope
from suffice.testing import assert_close, drawn, normal, padded
from tests.acceptance.mechanisms import PRESET_KINDS, spec_of

LENGTH, D_MODEL = 48, 16
PIECES = ([1] * 20 + [28], [7, 13, 1, 1, 26], [47, 1])
BASE = AttentionSpec(d_model=D_MODEL, num_heads=4, pattern=Causal())
MIXINGS = (
    Alignment(LENGTH, per_head=True, init="orthogonal"),
    BandedAlignment(LENGTH, 3, init="glorot"),
    ToeplitzAlignment(7, per_head=True, init="glorot"),
    BlockAlignment(5, init="glorot"),
)
SPECS = {
    **{
        kind: spec_of(name, causal=True, d_model=D_MODEL, num_heads=4, length=LENGTH)
        for kind, (name, causal) in PRESET_KINDS.items()
        if causal
    },
    **{
        f"{type(mixing).__name__}-{type(encoder).__name__}": replace(
            BASE, encoder=encoder, mixing=mixing
        )
        for mixing in MIXINGS
        for encoder in (Standard(), Optimised(), Efficient(), Latent())
    },
    **{
        repr(pattern): replace(BASE, pattern=pattern)
        for pattern in (
            Window(5) & Causal(),
            (Window(5) | Global(3)) & Causal(),
            Dilated(3, 4) & Causal(),
            Random(3),
            Block(7) & Causal(),
        )
    },
    **{
        f"window-toeplitz-{type(encoder).__name__}": replace(
            BASE,
            pattern=Window(5) & Causal(),
            encoder=encoder,
            mixing=ToeplitzAlignment(7, init="glorot"),
        )
        for encoder in (Standard(), Efficient())
    },
    "rope-gqa": replace(BASE, position=Rope(), num_kv_heads=2),
    **{
        f"normalised-{type(one).__name__}": replace(
            BASE, norm=HeadRMS(), position=Rope(), num_kv_heads=2, encoder=one
        )
        for one in (Standard(), Efficient())
    },
    "rope-efficient": replace(BASE, position=Rope(), encoder=Efficient()),
    "alibi": replace(BASE, position=Alibi()),
    **{
        f"{name}-rope-window": replace(
            preset(name, D_MODEL, 2, causal=True), position=Rope(), pattern=Window(5) & Causal()
        )
        for name in ("differential", "mla")
    },
    "infini-rope": replace(
        preset("infini", D_MODEL, 4, segment=5, delta=False), num_kv_heads=2, position=Rope()
    ),
    "linear-toeplitz": replace(BASE, kernel=Elu(), mixing=ToeplitzAlignment(4, init="glorot")),
}


def memories(spec):
    """Those that lose nothing of what the layer reads."""
    if spec.lane != "pairs":
        return [Dynamic()]
    reach, exact = spec.pattern.reach, [Dynamic(), Static(LENGTH)]
    if reach is not None and spec.mixing.history is not None:
        exact += [Rolling(reach), Rolling(reach + 3, sinks=2, spare=4)]
    return exact


def layer_of(spec):
    return drawn(Attention(spec, dtype=torch.float64), seed=3).eval()


def streamed(layer, x, pieces, state, valid=None):
    at, outs = 0, []
    for piece in pieces:
        here = slice(at, at + piece)
        masks = {} if valid is None else {"valid": valid[:, here]}
        outs.append(layer(x[:, here], state=state, **masks))
        at += piece
        assert state.length == at
    return torch.cat(outs, dim=1)


X = normal(3, LENGTH, D_MODEL, seed=1)


@pytest.mark.parametrize("name", SPECS)
@torch.no_grad()
def test_any_pieces_are_one_call(name):
    layer = layer_of(SPECS[name])
    want = layer(X)
    for memory in memories(SPECS[name]):
        for pieces in PIECES:
            state = layer.state(memory)
            assert state.exact
            assert_close(streamed(layer, X, pieces, state), want)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("side", ["left", "inside", "right"])
@torch.no_grad()
def test_padding_is_not_read_and_moves_no_position(name, side):
    layer, valid = layer_of(SPECS[name]), padded(3, LENGTH, side, seed=4)
    want = layer(X, valid=valid)
    poisoned = X.masked_fill(~valid[..., None], torch.nan)
    for number, memory in enumerate(memories(SPECS[name])):
        if memory.window is not None and (side != "left" or memory.sinks):
            continue
        for pieces in PIECES[number % 2 :]:  # token by token in every other memory
            got = streamed(layer, poisoned, pieces, layer.state(memory), valid)
            assert_close(got[valid], want[valid])
            assert torch.isfinite(got).all()


@pytest.mark.parametrize("name", SPECS)
@torch.no_grad()
def test_dropped_tokens_leave_no_trace(name):
    layer, spec = layer_of(SPECS[name]), SPECS[name]
    want = layer(X)
    for memory in memories(spec):
        state = layer.state(memory)
        streamed(layer, X[:, :23], [20, 3], state)
        if not state.can_drop(2):
            with pytest.raises(ConfigError, match=r"drop_last\(2\) of 23 positions in"):
                state.drop_last(2)
            continue
        state.drop_last(2)
        assert_close(layer(X[:, 21:30], state=state), want[:, 21:30])
    assert layer.state().can_drop(0)
    assert not layer.state().can_drop(1)


@pytest.mark.parametrize("name", SPECS)
@torch.no_grad()
def test_rows_can_be_selected(name):
    layer, rows = layer_of(SPECS[name]), torch.tensor([2, 0, 0, 1])
    want = layer(X)[rows]
    for memory in memories(SPECS[name]):
        state = layer.state(memory)
        layer(X[:, :30], state=state)
        state.select(rows)
        assert_close(layer(X[rows, 30:], state=state), want[:, 30:])


@torch.no_grad()
def test_a_padded_state_can_be_selected_and_dropped():
    layer, valid = layer_of(SPECS["causal-standard"]), padded(3, LENGTH, "left", seed=4)
    want, state = layer(X, valid=valid), layer.state()
    layer(X[:, :30], state=state, valid=valid[:, :30])
    state.drop_last(4)
    rows = torch.tensor([1, 2])
    state.select(rows)
    got = layer(X[rows, 26:], state=state, valid=valid[rows, 26:])
    assert_close(got[valid[rows, 26:]], want[rows, 26:][valid[rows, 26:]])


@pytest.mark.parametrize("name", ["rope-gqa", "infini-rope"])
@torch.no_grad()
def test_padding_may_begin_later(name):
    layer, valid = layer_of(SPECS[name]), padded(3, LENGTH, "inside", seed=4)
    valid[:, :20] = True
    want, state = layer(X, valid=valid), layer.state()
    got = [layer(X[:, :20], state=state), layer(X[:, 20:], state=state, valid=valid[:, 20:])]
    assert_close(torch.cat(got, dim=1)[valid], want[valid])
    assert state.nbytes > layer.state().nbytes


@torch.no_grad()
def test_a_window_that_is_too_small_is_the_window_of_the_memory():
    """Whatever the pieces; and it says that it is not what the layer alone would give."""
    layer = layer_of(BASE)
    for memory, pattern in (
        (Rolling(5), Window(5) & Causal()),
        (Rolling(5, sinks=2), (Window(5) | Global(2)) & Causal()),
    ):
        near = Attention(replace(BASE, pattern=pattern), dtype=torch.float64)
        near.load_state_dict(layer.state_dict())
        for pieces in PIECES:
            state = layer.state(memory)
            assert not state.exact
            assert_close(streamed(layer, X, pieces, state), near(X))


@pytest.mark.parametrize("name", ["standard", "differential", "mla"])
@torch.no_grad()
def test_a_coded_memory_is_near_and_says_so(name):
    layer = layer_of(SPECS[f"causal-{name}"])
    want = layer(X)
    for pieces in PIECES:
        state = layer.state(Quantised(block=4, recent=4))
        assert not state.exact
        got = streamed(layer, X, pieces, state)
        assert (got - want).norm() < (0.02 if name == "standard" else 0.05) * want.norm()
    assert (got != want).any()


@torch.no_grad()
def test_bytes_of_each_mechanism():
    """Keys and values; x alone where both are x and no key turns; x and V' where W_A mixes."""
    wide = replace(BASE, d_model=64)
    per_token = {
        "standard": (wide, 128),
        "gqa": (replace(wide, num_kv_heads=1), 32),
        "efficient": (replace(wide, encoder=Efficient()), 64),
        "efficient-rope": (replace(wide, encoder=Efficient(), position=Rope()), 128),
        "super": (replace(wide, encoder=Efficient(), mixing=Alignment(200)), 128),
        "optimised": (replace(wide, encoder=Optimised()), 128),
        "super-on-standard": (replace(wide, mixing=Alignment(200)), 192),
    }
    x = torch.zeros(1, 200, 64)
    for name, (spec, numbers) in per_token.items():
        layer = Attention(spec)
        state = layer.state(Static(200))
        layer(x, state=state)
        extra = 1.25 + 64 / 200 if name == "super-on-standard" else 1.0  # its raw values grow
        assert 4 * numbers * 200 <= state.nbytes <= extra * 4 * numbers * 200, name
        assert spec.cost(200).state_numbers == numbers
    layer = Attention(replace(wide, kernel=Favor(32)))
    state = layer.state()
    layer(x, state=state)
    size = state.nbytes
    layer(x, state=state)
    assert state.nbytes == size


@torch.no_grad()
def test_reset_is_new():
    for spec in (BASE, replace(BASE, kernel=Elu())):
        layer = layer_of(spec)
        state = layer.state()
        layer(X, state=state)
        state.reset()
        assert_close(layer(X[:2, :9], state=state), layer(X[:2, :9]))


def test_gradients_pass():
    layer = layer_of(SPECS["rope-gqa"])
    x = X.clone().requires_grad_()
    (want,) = torch.autograd.grad(layer(x).square().sum(), x)
    (got,) = torch.autograd.grad(streamed(layer, x, [30, 18], layer.state()).square().sum(), x)
    assert_close(got, want)


@torch.no_grad()
def test_half_precision_keeps_sums_in_float32():
    layer = layer_of(replace(BASE, kernel=Elu())).bfloat16()
    state = layer.state()
    layer(X.bfloat16(), state=state)
    assert state.sums.sums.dtype == torch.float32


@pytest.mark.parametrize(
    ("spec", "memory", "message"),
    [
        (replace(BASE, pattern=Full()), Dynamic(), "looks ahead, so no token is final"),
        (replace(BASE, kernel=Elu()), Rolling(5), "keeps sums of one size"),
        (replace(BASE, mixing=Alignment(9)), Rolling(5), "would forget what it needs"),
        (BASE, 5, "is not a KV cache"),
    ],
)
def test_what_cannot_stream(spec, memory, message):
    with pytest.raises(ConfigError, match=message):
        Attention(spec).state(memory)


def test_what_a_state_cannot_keep():
    layer, x = Attention(BASE), torch.zeros(2, 3, D_MODEL)
    state = layer.state()
    layer(x, state=state)
    with pytest.raises(ShapeError, match="3 rows for a state of 2"):
        layer(torch.zeros(3, 1, D_MODEL), state=state)
    with pytest.raises(ConfigError, match="segments with state"):
        layer(x, state=state, segments=torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(ConfigError, match="source and mask with state"):
        layer(x, x, state=state, mask=torch.ones(1, 1, 3, 3, dtype=torch.bool))
    with pytest.raises(ConfigError, match="source_segments with state"):
        layer(x, state=state, source_segments=torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(ConfigError, match="a layer of another spec"):
        Attention(replace(BASE, num_heads=2))(x, state=state)
    with pytest.raises(ShapeError, match="valid"):
        layer(x, state=state, valid=torch.ones(2, 9, dtype=torch.bool))
    with pytest.raises(ConfigError, match="give padding on the left alone"):
        layer(x, state=layer.state(Rolling(4)), valid=torch.tensor([[True, False, True]] * 2))
    assert state.length == 3


def test_a_full_static_memory_leaves_everything_as_it_was():
    layer = layer_of(replace(BASE, mixing=ToeplitzAlignment(3)))
    state = layer.state(Static(10))
    with torch.no_grad():
        layer(X[:, :8], state=state)
        with pytest.raises(ConfigError, match="3 more positions do not fit"):
            layer(X[:, 8:11], state=state)
        assert_close(layer(X[:, 8:10], state=state), layer(X[:, :10])[:, 8:])


@torch.no_grad()
def test_a_coded_window_holds_what_a_mixing_reads():
    spec = replace(BASE, encoder=Efficient(), pattern=Window(4) & Causal())
    layer = layer_of(replace(spec, mixing=ToeplitzAlignment(9, init="glorot")))
    want = layer(X)
    for pieces in PIECES:
        state = layer.state(Quantised(Rolling(4), block=2, recent=0))
        assert (streamed(layer, X, pieces, state) - want).norm() < 0.02 * want.norm()


@torch.no_grad()
def test_a_compressed_past_stays_in_float32_under_autocast():
    layer = drawn(Attention(preset("infini", D_MODEL, 4, segment=5)), seed=3)
    state = layer.state()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(X.float(), state=state)
    exact = layer.state()
    layer.double()(X, state=exact)
    got, want = (one.segments.rows[0].sums for one in (state, exact))
    assert got.dtype == torch.float32
    assert want.dtype == torch.float64


@pytest.mark.parametrize("kernel", [Elu(), Favor(8)], ids=repr)
@torch.no_grad()
def test_sums_do_not_hold_on_to_those_of_every_chunk(kernel):
    layer = Attention(replace(BASE, kernel=kernel))
    state = layer.state()
    layer(torch.randn(1, 300, D_MODEL), state=state)
    tensors = [x for x in (state.sums.sums, *state.sums.stabilizer) if x is not None]
    assert all(x.untyped_storage().nbytes() == x.numel() * x.element_size() for x in tensors)


@pytest.mark.parametrize("pieces", [1, 2, 5])
@pytest.mark.parametrize("spare", [1, 4, 6])
def test_padded_rows_are_dropped_within_the_spare(spare, pieces):
    """What is left behind a drop is read with as much beside the window, counted in each row."""
    spec = replace(BASE, pattern=Window(4) & Causal())
    layer = drawn(Attention(spec, dtype=torch.float64), seed=2)
    x, state = normal(2, 40, D_MODEL, seed=1), layer.state(Rolling(4, spare=spare))
    valid = torch.ones(2, 40, dtype=torch.bool)
    valid[0, :3] = False
    read = 20
    with torch.no_grad():
        layer(x[:, :read], valid=valid[:, :read], state=state)
        for _ in range(8):
            layer(x[:, read : read + pieces], state=state) if read + pieces <= 32 else None
            read = state.length
        assert state.can_drop(spare)
        state.drop_last(spare)
        read -= spare
        got = layer(x[:, read : read + 3], state=state)
        want = layer(x[:, : read + 3], valid=valid[:, : read + 3])[:, read:]
    assert_close(got, want)
    # the memory may hold more in its slack; where it stands in padded rows is no longer known
    assert not state.can_drop(spare + 20)


def test_a_padded_state_drops_no_more_than_it_can_place():
    layer = Attention(replace(BASE, pattern=Window(4) & Causal()))
    states = [layer.state(Rolling(4)) for _ in range(2)]
    x, valid = normal(1, 10, D_MODEL, seed=1).float(), torch.ones(1, 10, dtype=torch.bool)
    with torch.no_grad():
        for state, given in zip(states, (None, valid), strict=True):
            for t in range(10):
                one = None if given is None else given[:, t : t + 1]
                layer(x[:, t : t + 1], valid=one, state=state)
    assert [state.can_drop(4) for state in states] == [True, False]


@pytest.mark.parametrize("kind", SPECS)
def test_nothing_is_a_piece(kind):
    layer = drawn(Attention(SPECS[kind], dtype=torch.float64), seed=2)
    state, x = layer.state(), normal(2, 6, D_MODEL, seed=1)
    with torch.no_grad():
        parts = [layer(x[:, a:b], state=state) for a, b in ((0, 0), (0, 4), (4, 4), (4, 6))]
        assert state.length == 6
        assert_close(torch.cat(parts, dim=1), layer(x))


def test_what_is_no_state():
    with pytest.raises(ConfigError, match=r"state is a dict; give what layer.state\(\) makes"):
        Attention(BASE)(normal(1, 2, D_MODEL, seed=1).float(), state={})


@pytest.mark.parametrize("positions", [1.5, True, torch.tensor(1)], ids=repr)
def test_drops_are_whole_numbers(positions):
    layer = Attention(BASE)
    state = layer.state()
    layer(normal(1, 4, D_MODEL, seed=1).float(), state=state)
    assert not state.can_drop(positions)
    with pytest.raises(ConfigError, match="is not possible; call can_drop first"):
        state.drop_last(positions)
    assert state.length == 4


def test_positions_beyond_the_mixing_change_nothing():
    layer = Attention(replace(BASE, mixing=Alignment(6))).eval()
    state, x = layer.state(), normal(1, 9, D_MODEL, seed=1).float()
    layer(x[:, :4], state=state)
    message = r"7 keys are more than the 6 this Alignment was built for; reset the state, or extend"
    for valid in (None, torch.ones(1, 3, dtype=torch.bool)):
        with pytest.raises(ShapeError, match=message):
            layer(x[:, 4:7], valid=valid, state=state)
    assert state.length == 4


MEMORIES = (Dynamic(), Static(16), Rolling(4, spare=2), Quantised(block=4, recent=4))
WINDOW = preset("mistral", 16, 4, window=4, causal=True)
SUPER = preset("super_attention", 16, 4, causal=True, length=16)
FLOATS = normal(2, 9, 16, seed=1).float()
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
        layer.to(first)(FLOATS[:, :5].to(first), state=state)
        layer.float()
        message = f"torch.float32 but the cache is {first}"
        with pytest.raises(ConfigError, match=message):
            layer(FLOATS[:, 5:], state=state)
        assert state.length == 5
        state.reset()
        got = layer(FLOATS[:, :4], state=state)
        assert_close(got, layer(FLOATS[:, :4]), n=16)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("memory", [Dynamic(), Quantised(block=4, recent=4)], ids=str)
def test_pieces_with_and_without_autocast(memory, first):
    layer = Attention(SUPER).eval()
    state = layer.state(memory)
    with torch.no_grad():
        with torch.autocast("cpu", enabled=first):
            layer(FLOATS[:, :6], state=state)
        with torch.autocast("cpu", enabled=not first):
            got = layer(FLOATS[:, 6:], state=state)
        assert (got - layer(FLOATS)[:, 6:]).abs().max() < 0.05


@pytest.mark.parametrize("name", ["mistral", "super_attention", "linear", "infini"])
@pytest.mark.parametrize("memory", MEMORIES, ids=str)
def test_what_inference_mode_read_is_read_on(name, memory):
    spec = {"mistral": WINDOW, "super_attention": SUPER}.get(name) or preset(
        name, 16, 4, causal=True, **({"segment": 4} if name == "infini" else {})
    )
    if spec.lane != "pairs":
        memory = Dynamic()
    if memory.window is not None and "mixing" in spec.beyond_pairs:
        memory = Static(16)
    layer = Attention(spec).eval()
    state = layer.state(memory)
    with torch.inference_mode():
        layer(FLOATS[:, :6], state=state)
    with torch.no_grad():
        got = [layer(FLOATS[:, a:b], state=state) for a, b in ((6, 7), (7, 9))]
        if not memory.lossy:
            assert_close(torch.cat(got, dim=1), layer(FLOATS)[:, 6:], n=16)
    if memory.window is None:
        layer(FLOATS[:, :1], state=state).sum().backward()
        assert layer.q_proj.weight.grad is not None


def test_a_state_is_begun_again_with_other_rows_where_gradients_flow():
    layer = Attention(WINDOW)
    state = layer.state()
    layer(FLOATS, state=state)
    state.reset()
    assert state.nbytes == 0  # nor is the graph of what was read kept
    one = FLOATS[:1, :4]
    assert_close(layer(one, state=state), layer(one), n=16)


@torch.no_grad()
def test_rows_of_a_compressed_past_that_stand_apart_drop_alike():
    """After a padded prompt each row has segments of its own; a token is dropped from all."""
    layer = layer_of(replace(preset("infini", D_MODEL, 4, segment=5), bias=True))
    x, valid = normal(2, 9, D_MODEL, seed=1), padded(2, 8, "left", seed=1)
    state = layer.state()
    layer(x[:, :8], valid=valid, state=state)
    want = layer(x[:, 8:], state=state)
    state.drop_last(1)
    assert_close(layer(x[:, 8:], state=state), want)


def test_bytes_of_a_recurrence_are_those_of_its_sums_and_of_its_convolution():
    layer = Attention(preset("gated_deltanet", 16, 2))
    state = layer.state()
    layer(torch.zeros(3, 5, 16), state=state)
    assert state.nbytes == 3 * 4 * layer.spec.cost(5).state_fixed == 3 * 4 * (2 * 8 * 8 + 3 * 48)
