"""A translation that is written token by token is the one that is read at once."""

from __future__ import annotations

import pytest
import torch

from suffice import preset
from suffice.errors import ConfigError, MaskError, ShapeError, StateError
from suffice.memory import Dynamic, Rolling, Static
from suffice.models import TranslatorConfig
from suffice.presets import takes_length
from suffice.testing import assert_close, drawn, padded

D, HEADS, S, T = 16, 4, 7, 6
MECHANISMS = (
    "standard", "efficient", "optimised", "gqa", "super_attention", "toeplitz_super", "linear"
)  # fmt: skip
PIECES = ([6], [1] * 6, [2, 1, 3])


def build(mechanism="standard", cross=None, **changes):
    sizes = {"source_vocabulary_size": 17, "target_vocabulary_size": 13, "length": 9}
    config = TranslatorConfig(**{**sizes, "d_model": D, "mlp_width": 10, **changes})

    def spec(name, **options):
        length = {"length": 9} if takes_length(name) else {}
        return preset(name, D, HEADS, **length, **options)

    crossing = spec(cross or mechanism)
    both = spec(mechanism)
    return drawn(config.build(both, spec(mechanism, causal=True), crossing), seed=1).double().eval()


def texts(batch=3):
    generator = torch.Generator().manual_seed(6)
    draw = (torch.randint(high, (batch, n), generator=generator) for high, n in ((17, S), (13, T)))
    return tuple(draw)


def streamed(model, target, state, pieces, valid=None):
    outs, at = [], 0
    for piece in pieces:
        here = slice(at, at + piece)
        marks = None if valid is None else valid[:, here]
        outs.append(model.logits(model.features(target[:, here], valid=marks, state=state)))
        at += piece
    assert state.length == at
    return torch.cat(outs, dim=1)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("side", [None, "left", "inside", "right"])
@torch.no_grad()
def test_any_pieces_are_one_call(mechanism, side):
    model, (source, target) = build(mechanism), texts()
    valid = None if side is None else padded(3, S, side)
    want = model(source, target, valid)
    for pieces in PIECES:
        state = model.state(model.encode(source, valid), valid)
        got = streamed(model, target, state, pieces)
        assert (got - want).abs().max() <= 1e-10


@pytest.mark.parametrize("changes", [{"norm": "pre"}, {"positions": "sinusoidal"}], ids=str)
@pytest.mark.parametrize("memory", [Dynamic(), Static(9), Rolling(9)], ids=repr)
@torch.no_grad()
def test_other_models_and_memories(changes, memory):
    model, (source, target) = build("gqa", cross="linformer", **changes), texts()
    valid = padded(3, S, "inside")
    state = model.state(model.encode(source, valid), valid, memory=memory)
    got = streamed(model, target, state, PIECES[2])
    assert (got - model(source, target, valid)).abs().max() <= 1e-10


@torch.no_grad()
def test_padded_targets():
    model, (source, target) = build("efficient"), texts()
    valid = padded(3, T, "left", seed=3)
    state = model.state(model.encode(source))
    got = streamed(model, target, state, PIECES[1], valid)
    assert_close(got[valid], model(source, target, target_valid=valid)[valid])


@torch.no_grad()
def test_what_stands_at_padding_of_the_source_is_not_read():
    model, (source, target) = build("super_attention"), texts()
    valid = padded(3, S, "inside")
    encoded = model.encode(source, valid)
    spoilt = encoded.masked_fill(~valid[..., None], torch.nan)
    states = [model.state(x, valid) for x in (encoded, spoilt)]
    one, other = (streamed(model, target, state, PIECES[0]) for state in states)
    assert_close(one, other, "exact")


@pytest.mark.parametrize(
    ("mechanism", "tensors"), [("efficient", 1), ("optimised", 3), ("standard", 4)]
)
@torch.no_grad()
def test_layers_that_learn_no_keys_and_values_share_the_source(mechanism, tensors):
    """Of two layers; `optimised` learns keys alone."""
    model, (source, target) = build(mechanism), texts()
    encoded = model.encode(source)
    state = model.state(encoded)
    size = encoded.numel() * encoded.element_size()
    assert state.nbytes == state.sources.nbytes == tensors * size
    if mechanism == "efficient":
        addresses = {layer.view.cached[0].data_ptr() for layer in state.sources.layers}
        assert addresses == {encoded.data_ptr()}
    model.features(target[:, :1], state=state)
    state.repeat(2)
    assert state.sources.nbytes == 2 * tensors * size
    assert state.nbytes > state.sources.nbytes
    valid = torch.ones(3, S, dtype=torch.bool)
    assert model.state(encoded, valid).nbytes == tensors * size + 3 * S


@pytest.mark.parametrize("mechanism", MECHANISMS)
@torch.no_grad()
def test_rows_move_with_their_sources(mechanism):
    model, (source, target) = build(mechanism), texts()
    valid = padded(3, S, "left")
    state = model.state(model.encode(source, valid), valid)
    streamed(model, target[:, :3], state, [3])
    rows = torch.tensor([2, 0, 0, 1])
    state.select(rows)
    got = model.logits(model.features(target[rows, 3:], state=state))
    assert_close(got, model(source, target, valid)[rows, 3:])


@torch.no_grad()
def test_tokens_are_dropped_and_the_source_stays():
    model, (source, target) = build(), texts()
    want, state = model(source, target), model.state(model.encode(source))
    streamed(model, target.flip(0), state, PIECES[0])
    state.drop_last(4)
    assert state.length == 2
    state.reset()
    assert_close(streamed(model, target, state, PIECES[2]), want)


def test_refusals():
    model, (source, target) = build(), texts()
    encoded = model.encode(source)
    state = model.state(encoded)
    with pytest.raises(StateError, match="the state has read nothing"):
        state.repeat(2)
    with pytest.raises(ShapeError, match="2 rows of a target for a source of 3"):
        model.features(target[:2], state=state)
    assert state.length == 0
    with pytest.raises(ShapeError, match=r"source has shape \[3, 7\]"):
        model.state(encoded[..., 0])
    with pytest.raises(ShapeError, match="valid has shape"):
        model.state(encoded, torch.ones(3, T, dtype=torch.bool))
    with pytest.raises(MaskError, match="valid has dtype"):
        model.state(encoded, torch.ones(3, S))
    other = build("super_attention")
    with pytest.raises(ConfigError, match="would forget what it needs"):
        other.state(encoded, memory=Rolling(4))
    with pytest.raises(ShapeError, match="rows of 10 tokens in a model that learned positions"):
        model.features(torch.cat([target, target], dim=1)[:, :10], state=state)
