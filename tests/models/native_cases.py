"""Small decoders of every composition the kernels know, stepped natively and by torch."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from unittest.mock import patch

import torch

from suffice import preset
from suffice.encoders import HeadRMS, NoNorm
from suffice.memory import Dynamic, Quantised, Rolling, Static
from suffice.models import LMConfig
from suffice.models.native_decoder import NativeDecoder
from suffice.positions import Alibi, NoPosition, Rope
from suffice.testing import drawn

V, LENGTH = 37, 64
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "tanh", "swiglu", "geglu", "geglu_tanh")
NAMES = ("standard", "efficient", "optimised", "gqa", "mqa", "mistral", "sliding_window")
WINDOWED = ("mistral", "sliding_window")
# features and heads: heads of odd widths, narrower than a vector, of whole vectors
SIZES = ((6, 2), (5, 1), (24, 4), (72, 4), (128, 4), (96, 2), (128, 2), (256, 2))
# what models add to tokens, what attention does with positions
POSITIONS = (
    ("learned", NoPosition()),
    ("sinusoidal", NoPosition()),
    ("none", NoPosition()),
    ("none", Rope()),
    ("none", Rope(layout="interleaved")),
    ("none", Rope(features=2)),
    ("none", Rope(features=2, layout="interleaved")),
    ("none", Alibi()),
)
EXACT = (
    Dynamic(),
    Static(LENGTH),
    Rolling(5),
    Rolling(4, sinks=2, spare=2),
    Rolling(7, sinks=3),
)
CODED = (
    Quantised(block=4, recent=2, group=5),
    Quantised(bits=4, block=2, recent=0, group=6),
    Quantised(value_bits=4, block=4, recent=1, group=6),
    Quantised(Rolling(5), block=2, recent=1),
    Quantised(Rolling(9, sinks=2), block=4, recent=3, bits=4),
    Quantised(Static(LENGTH), block=4, recent=0),
)


def composition(seed):
    """Return a spec and the sizes of a model, drawn from everything there is."""
    pick = random.Random(seed)
    d_model, heads = pick.choice(SIZES)
    name = pick.choice(NAMES)
    added, position = pick.choice(POSITIONS)
    odd = d_model // heads % 2
    if odd and position.rotates:
        position = replace(position, features=2)
    options = {"window": pick.choice((1, 4, 9))} if name in WINDOWED else {}
    if name == "gqa":
        options["num_kv_heads"] = pick.choice([n for n in (1, 2) if heads % n == 0])
    if name == "mistral" and odd:
        name = "sliding_window"
    spec = preset(name, d_model, heads, causal=True, bias=pick.random() < 0.5, **options)
    sizes = {
        "d_model": d_model,
        "mlp_width": pick.choice((7, 48, 80)),
        "norm": pick.choice(("layer", "rms")),
        "activation": pick.choice(ACTIVATIONS),
        "positions": added,
        "tied": pick.random() < 0.5,
        "bias": pick.random() < 0.5,
    }
    norm = pick.choice((NoNorm(), HeadRMS(1e-3)))
    return replace(spec, position=position, norm=norm), sizes


def built(spec, *, seed=1, depth=2, length=LENGTH, dtype=torch.float32, **sizes):
    """Return a model with random weights and biases; every kind of size can be changed."""
    sizes = {"d_model": spec.d_model, "mlp_width": 24, **sizes}
    config = LMConfig(vocabulary_size=V, length=length, depth=depth, **sizes)
    return drawn(config.build(spec), seed=seed).to(dtype).eval()


def drawn_tokens(rows, length, seed=0):
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(seed))


def begun(lm, memory, tokens, valid=None):
    """Return a state that has read tokens."""
    state = lm.state(memory)
    lm(tokens, state=state, valid=valid)
    return state


def exactly(lm):
    """Return the same model in float64."""
    return copy.deepcopy(lm).double()


@torch.no_grad()
def both(lm, memory, tokens, begin, *, valid=None, decoder=None):
    """Return native logits [n, B, V] of the tokens behind `begin`, and the float64 model's."""
    oracle, first = exactly(lm), tokens[:, :begin]
    states = begun(lm, memory, first, valid), begun(oracle, memory, first, valid)
    decoder = decoder or NativeDecoder(lm, memory)
    pairs = [
        (decoder.step(column, states[0]), oracle.step(column, states[1]))
        for column in tokens[:, begin:].unbind(1)
    ]
    return tuple(map(torch.stack, zip(*pairs, strict=True)))


def settled(state):
    """Return a copy of a state in which what natively written positions become is coded.

    A native step leaves the position it wrote to be coded by the next call; torch codes at once.
    """
    state = copy.deepcopy(state)
    for layer in state.layers:
        layer.store.encode_tail()
    return state


@torch.no_grad()
def coded_both(lm, memory, tokens, begin, *, valid=None):
    """Return native logits and torch's of the same codes, step by step."""
    state = begun(lm, memory, tokens[:, :begin], valid)
    decoder, pairs = NativeDecoder(lm, memory), []
    for column in tokens[:, begin:].unbind(1):
        want = lm.step(column, settled(state))
        pairs.append((decoder.step(column, state), want))
    return tuple(map(torch.stack, zip(*pairs, strict=True)))


@torch.no_grad()
def pieces_both(lm, memory, tokens, sizes, *, valid=None):
    """Return native logits [B, T, V] of pieces of these sizes, and the float64 model's.

    Of a lossy memory they are torch's of the same codes. Padding, whose logits mean nothing, is 0.
    """
    decoder = NativeDecoder(lm, memory)
    oracle = lm if memory.lossy else exactly(lm)
    state, other = decoder.state(memory), oracle.state(memory)
    pairs, masks = [], [None] * len(sizes) if valid is None else valid.split(sizes, dim=1)
    for piece, real in zip(tokens.split(sizes, dim=1), masks, strict=True):
        if memory.lossy:
            other = settled(state)
        want = oracle(piece, valid=real, state=other)
        with patch.object(lm, "features", side_effect=AssertionError("torch has read it")):
            got = lm.logits(decoder.features(piece, valid=real, state=state))
        hidden = torch.zeros(piece.shape).bool() if real is None else ~real
        pairs.append([x.masked_fill(hidden[..., None], 0.0) for x in (got, want)])
    return tuple(torch.cat(x, dim=1) for x in zip(*pairs, strict=True))
