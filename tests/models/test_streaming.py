"""A language model that reads a text in pieces gives what it gives in one call."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suffice import AttentionSpec, preset
from suffice.errors import ConfigError, ShapeError, StateError
from suffice.memory import Dynamic, Quantised, Rolling, Static
from suffice.models import LMConfig
from suffice.models.configurations import layers
from suffice.models.state import ModelState
from suffice.patterns import Causal, Window
from suffice.positions import Rope
from suffice.presets import schedule, takes_length
from suffice.testing import assert_close, drawn, padded
from tests.acceptance.mechanisms import PRESET_KINDS

D, HEADS, V, LENGTH = 64, 4, 61, 48
PIECES = ([48], [1] * 48, [7, 13, 1, 1, 26], [3, 1, 20, 24], [47, 1])
GQA = AttentionSpec(d_model=D, num_heads=HEADS, num_kv_heads=2, pattern=Causal())
ROPE = AttentionSpec(d_model=D, num_heads=HEADS, num_kv_heads=2, pattern=Causal(), position=Rope())
MECHANISMS = sorted({name for name, causal in PRESET_KINDS.values() if causal})


def config(positions="none", **changes):
    sizes = {"vocabulary_size": V, "length": LENGTH, "d_model": D, "depth": 3, "mlp_width": 96}
    return LMConfig(**{**sizes, **changes}, positions=positions)


def build(spec, positions="none"):
    return drawn(config(positions).build(spec), seed=2).eval()


STYLES = {"rope": (ROPE, "none"), "learned": (GQA, "learned"), "sinusoidal": (GQA, "sinusoidal")}
styles = pytest.mark.parametrize("style", STYLES)


def ids(batch=2, length=LENGTH):
    return torch.randint(V, (batch, length), generator=torch.Generator().manual_seed(4))


def streamed(lm, tokens, pieces, state, valid=None):
    at, outs = 0, []
    for piece in pieces:
        here = slice(at, at + piece)
        marks = None if valid is None else valid[:, here]
        outs.append(lm(tokens[:, here], valid=marks, state=state))
        at += piece
        assert state.length == at
    return torch.cat(outs, dim=1)


@styles
@pytest.mark.parametrize("pieces", PIECES, ids=str)
@pytest.mark.parametrize("memory", [Dynamic(), Static(64)], ids=repr)
@torch.no_grad()
def test_any_pieces_are_one_call(style, pieces, memory):
    lm, tokens = build(*STYLES[style]), ids()
    want, state = lm(tokens), lm.state(memory)
    assert state.exact
    got = streamed(lm, tokens, pieces, state)
    assert (got - want).abs().max() <= 1e-4
    assert (got.argmax(dim=-1) == want.argmax(dim=-1)).all()
    assert all(layer.length == LENGTH for layer in state.layers)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@torch.no_grad()
def test_every_mechanism_streams(mechanism):
    options = {"length": LENGTH} if takes_length(mechanism) else {}
    specs = schedule(mechanism, D, HEADS, depth=3, causal=True, **options)
    lm, tokens = build(specs, "learned").double(), ids()
    want = lm(tokens)
    for pieces in PIECES[1:3]:
        assert_close(streamed(lm, tokens, pieces, lm.state()), want, n=D)


@torch.no_grad()
def test_layers_of_different_kinds_stream_together():
    specs = layers("standard", config(), HEADS, position=Rope(), window=5, full_every=3)
    specs[1] = preset("linear", D, HEADS, causal=True)
    lm, tokens = build(specs).double(), ids()
    valid = padded(2, LENGTH, "left", seed=3)
    want = lm(tokens, valid=valid)
    state = lm.state()
    got = streamed(lm, tokens, PIECES[2], state, valid)
    assert_close(got[valid], want[valid], n=D)


@styles
@pytest.mark.parametrize("side", ["left", "inside", "right"])
@torch.no_grad()
def test_padding_is_not_read_and_not_counted(style, side):
    lm, tokens = build(*STYLES[style]).double(), ids(3)
    valid = padded(3, LENGTH, side, seed=4)
    want = lm(tokens, valid=valid)
    for row in range(3):
        alone = lm(tokens[row : row + 1, valid[row]])
        assert_close(want[row, valid[row]], alone[0], n=D)
    for pieces in PIECES:
        got = streamed(lm, tokens.masked_fill(~valid, 5), pieces, lm.state(), valid)
        assert_close(got[valid], want[valid], n=D)


@torch.no_grad()
@styles
@torch.no_grad()
def test_rows_of_padded_states_are_joined_and_put(style):
    """Any rows of several states, whose texts have several lengths and padding anywhere."""
    lm = build(*STYLES[style])
    texts = {
        name: ids(1, n)[0].roll(n).tolist() for name, n in zip("abcd", (11, 7, 3, 5), strict=True)
    }

    def read(names, side):
        longest = max(len(texts[name]) for name in names)
        tokens, valid = torch.zeros(2, longest, dtype=torch.long), torch.zeros(2, longest) > 0
        for row, name in enumerate(names):
            missing = longest - len(texts[name])
            at = slice(missing, longest) if side == "left" else slice(0, longest - missing)
            tokens[row, at], valid[row, at] = torch.tensor(texts[name]), True
        state = lm.state()
        lm(tokens, valid=valid, state=state)
        return state

    first, second = read("ab", "left"), read("cd", "right")
    rows = ["d", "b", "c", "a"]
    joined = ModelState.join([(second, 1), (first, 1), (second, 0), (first, 0)])
    written = [list(texts[name]) for name in rows]

    def goes_on(token):
        got = lm.step(torch.tensor([token, 1, 2, 3]), joined)
        for row, (text, new) in enumerate(zip(written, (token, 1, 2, 3), strict=True)):
            text.append(new)
            assert_close(got[row], lm(torch.tensor([text]))[0, -1], n=D)

    goes_on(7)
    goes_on(8)
    joined.put(2, ModelState.join([(first, 1)]))
    written[2] = list(texts["b"])
    goes_on(9)
    joined.put(0, ModelState.join([(first, 0)]))
    written[0] = list(texts["a"])
    goes_on(4)


@styles
@pytest.mark.parametrize("marked", [False, True])
@torch.no_grad()
def test_rows_move_in_all_layers(style, marked):
    lm, tokens = build(*STYLES[style]).double(), ids(3)
    valid = padded(3, LENGTH, "left", seed=4) if marked else torch.ones(3, LENGTH, dtype=torch.bool)
    want = lm(tokens, valid=valid)

    def check(state, rows):
        marks = valid[rows, 30:] if marked else None
        got = lm(tokens[rows, 30:], valid=marks, state=state)
        assert_close(got[valid[rows, 30:]], want[rows, 30:][valid[rows, 30:]], n=D)

    for move, rows in (
        (lambda state: state.select(torch.tensor([2, 0])), [2, 0]),
        (lambda state: state.reorder(torch.tensor([1, 1, 0])), [1, 1, 0]),
        (lambda state: state.repeat(2), [0, 0, 1, 1, 2, 2]),
        (lambda state: state.repeat(1), [0, 1, 2]),
    ):
        state = lm.state()
        lm(tokens[:, :30], valid=valid[:, :30] if marked else None, state=state)
        move(state)
        check(state, rows)


@torch.no_grad()
def test_a_refused_drop_changes_no_layer():
    specs = [GQA, preset("linear", D, HEADS, causal=True), GQA]
    lm, tokens = build(specs).double(), ids()
    want, state = lm(tokens), lm.state()
    lm(tokens[:, :20], state=state)
    assert not state.can_drop(1)
    with pytest.raises(ConfigError, match=r"drop_last\(1\) of 20 positions in sums of features"):
        state.drop_last(1)
    assert_close(lm(tokens[:, 20:], state=state), want[:, 20:], n=D)


@torch.no_grad()
def test_what_a_state_refuses():
    lm, tokens = build(GQA, "learned"), ids()
    state = lm.state(Static(20))
    for move in (
        lambda: state.select(torch.tensor([0])),
        lambda: state.reorder(torch.tensor([0])),
        lambda: state.repeat(2),
    ):
        with pytest.raises(StateError, match="read nothing"):
            move()
    lm(tokens[:, :16], state=state)
    with pytest.raises(ShapeError, match="3 rows to reorder 2"):
        state.reorder(torch.tensor([0, 1, 1]))
    for rows in (torch.tensor([0, 2]), torch.tensor([-1, 0]), torch.tensor([[0, 1]])):
        with pytest.raises(ShapeError, match="state of 2"):
            state.select(rows)
    with pytest.raises(ConfigError, match=r"repeat\(0\)"):
        state.repeat(0)
    with pytest.raises(ConfigError, match="5 more positions do not fit"):
        lm(tokens[:, 16:21], state=state)
    with pytest.raises(ShapeError, match="3 rows for a state of 2"):
        lm(ids(3, 1), state=state)
    assert_close(lm(tokens[:, 16:20], state=state), lm(tokens[:, :20])[:, 16:], n=D)
    longer = lm.state()
    lm(tokens[:, :40], state=longer)
    with pytest.raises(ShapeError, match="rows of 50 tokens in a model that learned"):
        lm(tokens[:, :10], state=longer)


@torch.no_grad()
def test_lossy_memories_are_not_exact():
    lm, tokens = build(ROPE), ids()
    near = build(replace(ROPE, pattern=Window(8) & Causal()))
    want, state = near(tokens), lm.state(Rolling(8))
    assert not state.exact
    assert (streamed(lm, tokens, PIECES[2], state) - want).abs().max() <= 1e-4
    state = lm.state(Quantised(block=8, recent=8))
    assert not state.exact
    got, want = streamed(lm, tokens, PIECES[2], state), lm(tokens)
    assert 1e-6 < (got.softmax(-1) - want.softmax(-1)).abs().max() < 0.1


@torch.no_grad()
def test_a_padded_window_is_refused_in_layers_that_roll():
    """Also where the first layer keeps sums, whose memory minds no padding."""
    lm = build([preset("linear", D, HEADS, causal=True), ROPE, ROPE])
    with pytest.raises(ConfigError, match="give padding on the left alone"):
        lm(ids(1, 3), valid=torch.tensor([[True, False, True]]), state=lm.state(Rolling(4)))


SUMS = preset("linear", D, HEADS, causal=True)
BOUND = preset("super_attention", D, HEADS, causal=True, length=LENGTH)
NEAR = preset("mistral", D, HEADS, window=4, causal=True)


@pytest.mark.parametrize(
    ("last", "memory", "valid", "match"),
    [
        (GQA, Static(8), None, "4 more positions do not fit"),
        (BOUND, Dynamic(), None, "49 keys are more than the 48 this Alignment was built for"),
        (NEAR, Rolling(4), [[True, False, True, True]] * 2, "counts every position after the"),
    ],
    ids=["room", "mixing", "padding"],
)
@torch.no_grad()
def test_a_refusal_of_the_last_layer_changes_no_other(last, memory, valid, match):
    lm, tokens = build([SUMS, SUMS, last]), ids(length=49)
    read = 45 if last is BOUND else 6
    state = lm.state(memory)
    lm(tokens[:, :read], state=state)
    marks = None if valid is None else torch.tensor(valid)
    with pytest.raises(ValueError, match=match):
        lm(tokens[:, read : read + 4], valid=marks, state=state)
    assert [layer.length for layer in state.layers] == [read] * 3
    got = lm(tokens[:, read : read + 2], state=state)
    assert_close(got, lm(tokens[:, : read + 2])[:, read:], n=LENGTH)


@torch.no_grad()
def test_states_of_other_models_are_refused():
    lm, other = build(ROPE), config(depth=2).build(ROPE)
    state = other.state()
    with pytest.raises(ConfigError, match=r"a state of 2 layers for a model of 3; give what model"):
        lm(ids(), state=state)
    assert state.length == 0
    with pytest.raises(
        ConfigError, match=r"state is a LayerState; give what model.state\(\) makes"
    ):
        lm(ids(), state=lm.blocks[0].attention.state())


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([1, 0], "a list"),
        (torch.tensor([1.0, 0.0]), "torch.float32"),
        (torch.tensor([True, False]), "torch.bool"),
    ],
    ids=["list", "float", "bool"],
)
@torch.no_grad()
def test_rows_are_integers(rows, match):
    lm = build(ROPE)
    state = lm.state()
    lm(ids(), state=state)
    for move in (state.select, state.reorder):
        with pytest.raises(ShapeError, match=match):
            move(rows)
    for times in (0, 1.5, True):
        with pytest.raises(ConfigError, match="repeat"):
            state.repeat(times)
    assert state.layers[0].batch == 2


def test_ids_are_whole_numbers():
    lm = build(GQA, "learned")
    for dtype in (torch.float32, torch.uint8):
        with pytest.raises(ConfigError, match=f"token ids are {dtype}; give int64 or int32"):
            lm(ids().to(dtype))
    assert_close(lm(ids().int()), lm(ids()), "exact")
