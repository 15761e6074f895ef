"""A native step is the model's step: every composition, memory, batch and dtype."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import product

import pytest
import torch

from suffice import AttentionSpec, preset
from suffice.combine import Differential
from suffice.encoders import HeadLayerNorm, HeadRMS, NoNorm, ProjectionRMS
from suffice.errors import ConfigError, ShapeError
from suffice.kernels import Softmax
from suffice.memory import Dynamic, Quantised, Rolling, Static
from suffice.mixing import Alignment, BandedAlignment, BlockAlignment, ToeplitzAlignment
from suffice.models import LMConfig
from suffice.models.native_decoder import MAX_TOKENS, SPAN, NativeDecoder, unsupported
from suffice.patterns import Causal, Global, Window
from suffice.positions import Alibi, Rope
from suffice.quantise import quantise
from suffice.testing import assert_close, drawn, padded
from tests.models.native_cases import (
    CODED,
    EXACT,
    V,
    begun,
    both,
    built,
    coded_both,
    composition,
    drawn_tokens,
    exactly,
    pieces_both,
)
from tests.ops.native.codings import isa, needs_kernels, some_isa

__all__ = ["isa", "some_isa"]

pytestmark = needs_kernels
DRAWS = 36
LEFT = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6, [0, 0, 0, 0, 0, 1]]).bool()


def rounding(lm):
    """Return the longest sum behind a logit: of a product, or of all positions."""
    return {"n": max(lm.config.d_model, lm.config.mlp_width, lm.config.length)}


def close(pair, lm):
    assert_close(*pair, **rounding(lm))


def two_mechanisms_each(memories):
    """Return pairs of a memory and a mechanism in which each mechanism comes with several."""
    names = ("standard", "efficient", "gqa", "mistral")
    return [(m, names[(i + j) % 4]) for i, m in enumerate(memories) for j in (0, 1)]


@pytest.mark.parametrize("seed", range(DRAWS))
def test_every_composition(some_isa, seed):
    spec, sizes = composition(seed)
    lm = built(spec, **sizes)
    close(both(lm, Dynamic(), drawn_tokens(1, 25), 1 + seed % 18), lm)
    close(both(lm, Dynamic(), drawn_tokens(3, 10), 4), lm)
    close(both(lm, Dynamic(), drawn_tokens(3, 11), 6, valid=LEFT), lm)


@pytest.mark.parametrize(("memory", "name"), two_mechanisms_each(EXACT), ids=repr)
def test_every_memory(some_isa, name, memory):
    options = {"window": 6} if name == "mistral" else {}
    lm = built(preset(name, 72, 4, causal=True, **options), positions="none")
    for begin in (1, 3, 18):  # some shorter than the sinks
        close(both(lm, memory, drawn_tokens(1, begin + 20), begin), lm)
    close(both(lm, memory, drawn_tokens(3, 15), 5), lm)
    if not memory.sinks:
        close(both(lm, memory, drawn_tokens(3, 18), 6, valid=LEFT), lm)


PIECES = (7, 1, 12, 5)


def left_padded(rows, lengths):
    """Return a mask [rows, PIECES] of texts that are padded on the left to the first piece."""
    padding = PIECES[0] - torch.tensor(lengths)
    return torch.arange(sum(PIECES)).expand(rows, -1) >= padding[:, None]


@pytest.mark.parametrize("seed", range(DRAWS))
def test_pieces_of_every_composition(some_isa, seed):
    spec, sizes = composition(seed)
    lm = built(spec, **sizes)
    close(pieces_both(lm, Dynamic(), drawn_tokens(1, sum(PIECES)), PIECES), lm)
    valid = left_padded(3, (4, 7, 1))
    close(pieces_both(lm, Dynamic(), drawn_tokens(3, sum(PIECES)), PIECES, valid=valid), lm)


WHOLE = [memory for memory in (*EXACT, *CODED) if not memory.sinks]


@pytest.mark.parametrize(("memory", "name"), two_mechanisms_each(WHOLE), ids=repr)
def test_pieces_in_every_memory(some_isa, name, memory):
    options = {"window": 6} if name == "mistral" else {}
    lm = built(preset(name, 72, 4, causal=True, **options), positions="none")
    sizes = (5, 1, 4, 5, 2, 5)  # no more than a rolling memory keeps
    close(pieces_both(lm, memory, drawn_tokens(2, sum(sizes)), sizes), lm)
    valid = torch.arange(sum(sizes)) >= torch.tensor([[0], [3]])
    close(pieces_both(lm, memory, drawn_tokens(2, sum(sizes)), sizes, valid=valid), lm)


@torch.no_grad()
@pytest.mark.parametrize("residual", ["pre", "out", "parallel"])
def test_what_padding_holds_does_not_reach_the_ranges_of_codes(residual):
    lm = built(preset("gqa", 24, 4, causal=True), positions="none", residual=residual)
    memory, tokens = Quantised(block=4, recent=0), drawn_tokens(1, 9)
    valid = torch.arange(9)[None] >= 3  # the first block has padding and a real position
    outputs = []
    for token in (0, 5):
        decoder = NativeDecoder(lm, memory)
        state, padded = decoder.state(memory), tokens.masked_fill(~valid, token)
        decoder.features(padded, valid=valid, state=state)
        outputs.append(decoder.step(tokens[:, 0], state))
    state = lm.state(memory)
    lm.features(tokens, valid=valid, state=state)
    assert torch.equal(*outputs)
    assert_close(outputs[0], lm.step(tokens[:, 0], state), n=24)


SINKS = Softmax(sink=True, cap=0.7)
MANY_HEADS = preset("mqa", 96, 48, causal=True)  # of which few positions go together
PAIRS = AttentionSpec(d_model=24, num_heads=2, pattern=Causal(), combine=Differential())
UNUSUAL = (
    (replace(preset("gqa", 72, 4, causal=True), kernel=SINKS), Quantised(block=4, recent=2)),
    (replace(preset("gqa", 72, 4, causal=True), kernel=SINKS), Dynamic()),
    (MANY_HEADS, Dynamic()),
    (PAIRS, Dynamic()),
)


@pytest.mark.parametrize(("spec", "memory"), UNUSUAL, ids=("codes", "sinks", "heads", "pairs"))
def test_pieces_with_sinks_many_heads_and_pairs(some_isa, spec, memory):
    lm = built(spec, norm="rms", residual="both")
    close(pieces_both(lm, memory, drawn_tokens(2, sum(PIECES)), PIECES), lm)


@pytest.mark.parametrize("memory", [Dynamic(), Rolling(520)], ids=repr)
def test_a_piece_across_two_parts_of_the_cache(memory):
    spec = AttentionSpec(d_model=16, num_heads=2, pattern=Causal(), position=Rope())
    lm = built(spec, positions="none", depth=1, length=600)
    sizes = (*[60] * 8, 40, 3)  # parts have 512 positions
    assert_close(*pieces_both(lm, memory, drawn_tokens(2, sum(sizes)), sizes), n=600)


@pytest.mark.parametrize(
    "spec", [preset("mistral", 24, 4, causal=True, window=3), preset("gqa", 24, 4, causal=True)]
)
def test_nan_of_a_token_reaches_those_alone_that_see_it(spec):
    lm = built(spec, positions="none", depth=1, tied=False)
    tokens = torch.tensor([[3, 5, 7, 9, 2, 4, 6, 8, 1, 3]])
    lm.embedding.tokens.weight.data[2] = torch.nan
    got, want = pieces_both(lm, Dynamic(), tokens, (1, 9))
    assert torch.equal(got.isnan(), want.isnan())
    assert 0 < int(got.isnan().any(dim=-1).sum()) < 7
    assert_close(got.nan_to_num(), want.nan_to_num(), n=64)


REFUSED = (
    (preset("standard", 24, 4, causal=True), Rolling(4, sinks=2)),
    (preset("toeplitz_super", 24, 4, causal=True, width=4), Dynamic()),
)


@pytest.mark.parametrize(("spec", "memory"), REFUSED, ids=repr)
def test_pieces_that_go_through_the_model(spec, memory):
    lm = built(spec)
    assert unsupported(lm, memory) is None
    with torch.no_grad(), pytest.raises(AssertionError, match="torch has read it"):
        pieces_both(lm, memory, drawn_tokens(1, 3), (3,))


@torch.no_grad()
def test_long_pieces_and_padding_on_the_right_go_through_the_model():
    lm = built(preset("gqa", 24, 4, causal=True), length=2 * MAX_TOKENS)
    decoder, right = NativeDecoder(lm, Dynamic()), torch.tensor([[True, True, False]])
    for tokens, valid in ((drawn_tokens(1, MAX_TOKENS + 1), None), (drawn_tokens(1, 3), right)):
        got = decoder.features(tokens, valid=valid, state=decoder.state(Dynamic()))
        assert torch.equal(got, lm.features(tokens, valid=valid, state=lm.state()))


GEMMA = {
    "norm": "rms",
    "residual": "both",
    "head_bias": True,
    "tied": False,
    "activation": "geglu_tanh",
    "logit_cap": 3.0,
    "positions": "none",
}


@pytest.mark.parametrize("memory", [*EXACT, CODED[0], CODED[3]], ids=repr)
@pytest.mark.parametrize(
    "kernel", [Softmax(cap=2.0), Softmax(sink=True), Softmax(sink=True, cap=0.7)], ids=repr
)
def test_caps_sinks_and_norms_after_a_branch(some_isa, kernel, memory):
    lm = built(replace(preset("gqa", 72, 4, causal=True), kernel=kernel), **GEMMA)
    check = coded_both if memory.lossy else both
    close(check(lm, memory, drawn_tokens(1, 30), 9), lm)
    if not memory.sinks:
        close(check(lm, memory, drawn_tokens(3, 15), 6, valid=LEFT), lm)


RELEASED = {  # residual, norm of queries and keys, sizes: as GPT-NeoX and Phi, Command R+, OLMo 2
    "phi": ("parallel", NoNorm(), {"head_bias": True, "activation": "gelu_tanh"}),
    "cohere": ("parallel", HeadLayerNorm(1e-3), {"bias": False, "activation": "swiglu"}),
    "olmo2": ("out", ProjectionRMS(1e-3), {"norm": "rms", "activation": "swiglu"}),
}


@pytest.mark.parametrize("memory", [Dynamic(), Rolling(7, sinks=3), CODED[0]], ids=repr)
@pytest.mark.parametrize("name", RELEASED)
def test_blocks_of_released_models(some_isa, name, memory):
    residual, norm, sizes = RELEASED[name]
    rotary = Rope(features=4)
    spec = replace(preset("gqa", 72, 4, causal=True), position=rotary, norm=norm)
    lm = built(spec, residual=residual, positions="none", tied=False, **sizes)
    check = coded_both if memory.lossy else both
    close(check(lm, memory, drawn_tokens(1, 30), 9), lm)
    if not memory.sinks:
        close(check(lm, memory, drawn_tokens(3, 15), 6, valid=LEFT), lm)


@pytest.mark.parametrize("residual", ["pre", "both", "out", "parallel"])
@pytest.mark.parametrize("norm", [HeadLayerNorm(1e-3), ProjectionRMS(1e-3)], ids=repr)
@pytest.mark.parametrize("name", ["standard", "efficient", "optimised", "mqa"])
def test_norms_of_queries_and_keys_that_know_their_head(name, norm, residual):
    spec = replace(preset(name, 24, 4, causal=True), norm=norm)
    lm = built(spec, residual=residual)
    close(both(lm, Dynamic(), drawn_tokens(3, 11), 6, valid=LEFT), lm)


@pytest.mark.parametrize("heads", [11, 12, 17, 40])
def test_many_heads_on_one_key(some_isa, heads):
    sizes = {"num_heads": heads, "num_kv_heads": 1, "head_dim": 6, "position": Rope()}
    kernel = Softmax(cap=2.0) if heads == 17 else Softmax()
    spec = AttentionSpec(d_model=24, pattern=Causal(), kernel=kernel, **sizes)
    lm = built(spec, positions="none")
    close(both(lm, Dynamic(), drawn_tokens(2, 60), 50), lm)
    close(both(lm, Rolling(7, sinks=3), drawn_tokens(1, 20), 9), lm)
    close(both(lm, Dynamic(), drawn_tokens(3, 15), 6, valid=LEFT), lm)


@pytest.mark.parametrize(
    "changes",
    [GEMMA, {"residual": "out"}, {"residual": "parallel"}],
    ids=["both", "out", "parallel"],
)
def test_packed_weights_of_a_capped_model(changes):
    spec = replace(preset("gqa", 64, 4, causal=True), kernel=Softmax(cap=2.0))
    lm = built(spec, mlp_width=64, **changes)
    quantise(lm, 8)
    tokens = drawn_tokens(2, 14)
    with torch.no_grad():
        states = begun(lm, Dynamic(), tokens[:, :9]), begun(lm, Dynamic(), tokens[:, :9])
        decoder = NativeDecoder(lm, Dynamic())
        for column in tokens[:, 9:].unbind(1):
            close((decoder.step(column, states[0]), lm.step(column, states[1])), lm)


@pytest.mark.parametrize("memory", EXACT, ids=repr)
@pytest.mark.parametrize(
    ("d_model", "changes"),
    [
        (72, {"num_kv_heads": 1, "combine": Differential(depth=2)}),
        (64, {"norm": HeadRMS(), "position": Rope()}),
        (96, {"num_heads": 4, "num_kv_heads": 2, "position": Alibi(), "bias": False}),
    ],
    ids=["grouped", "norm", "slopes"],
)
def test_differences_of_softmaxes(some_isa, d_model, changes, memory):
    changes = {"num_heads": 2, "combine": Differential(), **changes}
    spec = AttentionSpec(d_model=d_model, pattern=Causal(), **changes)
    lm = built(spec, positions="none")
    close(both(lm, memory, drawn_tokens(1, 30), 9), lm)
    close(both(lm, memory, drawn_tokens(3, 15), 5), lm)
    if not memory.sinks:
        close(both(lm, memory, drawn_tokens(3, 15), 6, valid=LEFT), lm)


@pytest.mark.parametrize(("memory", "name"), two_mechanisms_each(CODED), ids=repr)
def test_every_coded_memory(some_isa, name, memory):
    options = {"window": 6} if name == "mistral" else {}
    lm = built(preset(name, 72, 4, causal=True, **options), positions="none")
    for begin in (2, 18):
        close(coded_both(lm, memory, drawn_tokens(1, begin + 20), begin), lm)
    close(coded_both(lm, memory, drawn_tokens(3, 15), 5), lm)
    if not memory.sinks:
        close(coded_both(lm, memory, drawn_tokens(3, 15), 6, valid=LEFT), lm)


@pytest.mark.parametrize("width", [32, 64, 14])
@pytest.mark.parametrize("position", [Alibi(), Rope()], ids=repr)
def test_coded_memories_of_other_widths(some_isa, width, position):
    spec = AttentionSpec(d_model=2 * width, num_heads=2, pattern=Causal(), position=position)
    lm = built(spec, positions="none")
    for bits, of_values in product((8, 4), (8, 4)):
        memory = Quantised(bits=bits, value_bits=of_values, block=24, recent=5, group=10)
        close(coded_both(lm, memory, drawn_tokens(2, 60), 50), lm)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["standard", "efficient"])
def test_half_weights_have_a_half_cache(isa, dtype, name):
    lm = built(preset(name, 72, 4, causal=True), dtype=dtype, tied=False)
    tokens = drawn_tokens(2, 30)
    with torch.no_grad():
        oracle = exactly(lm)  # the same numbers
        states = lm.state(), oracle.state()
        decoder = NativeDecoder(lm, Dynamic())
        lm(tokens[:, :12], state=states[0])
        oracle(tokens[:, :12], state=states[1])
        # the prompt was read in half precision: what it left is the same in both from here on
        for one, other in zip(states[0].layers, states[1].layers, strict=True):
            for got, want in zip(one.store.buffers, other.store.buffers, strict=True):
                want[:, :, :12] = got[:, :, :12]
        got, want = [], []
        for column in tokens[:, 12:].unbind(1):
            got.append(decoder.step(column, states[0]))
            want.append(oracle.step(column, states[1]))
    assert states[0].layers[0].store.buffers[0].dtype is dtype
    assert got[0].dtype is torch.float32
    got, want = torch.stack(got), torch.stack(want)
    assert_close(got.to(dtype), want)


def test_a_float32_state_of_half_weights_is_exact_to_float32(isa):
    lm = built(preset("standard", 24, 4, causal=True), dtype=torch.bfloat16)
    plain = copy.deepcopy(lm).float()
    tokens = drawn_tokens(1, 9)
    with torch.no_grad():
        states = begun(plain, Dynamic(), tokens[:, :4]), begun(plain, Dynamic(), tokens[:, :4])
        got = NativeDecoder(lm, Dynamic()).step(tokens[:, 4], states[0])
        assert_close(got, plain.step(tokens[:, 4], states[1]), n=24)


@pytest.mark.parametrize(("window", "bits"), [(None, None), (None, 8), (300, 4), (520, None)])
def test_long_texts_are_split_between_threads(isa, window, bits):
    pattern = Causal() if window is None else Window(window) & Causal()
    spec = AttentionSpec(d_model=24, num_heads=2, num_kv_heads=1, pattern=pattern)
    lm = built(replace(spec, position=Alibi()), positions="none", depth=1, length=1300)
    memory = Dynamic() if window is None else Rolling(window)
    tokens = drawn_tokens(2, 1300)
    valid = torch.ones(2, 1294, dtype=torch.bool)
    valid[0, :700] = False  # the whole first piece of a row, and a part of its second
    for marks in (None, valid):
        if bits is None:
            close(both(lm, memory, tokens, 1294, valid=marks), lm)
        else:
            coded = Quantised(memory, bits=bits, block=32, recent=3)
            close(coded_both(lm, coded, tokens, 1294, valid=marks), lm)


PLANNED = [(Window(5) | Global(2)) & Causal(), Causal() & (Global(4) | Window(3)), Causal()]


@pytest.mark.parametrize("memory", [Dynamic(), Static(64), Rolling(5, sinks=4)], ids=repr)
@pytest.mark.parametrize("position", [Alibi(), Rope()], ids=repr)
def test_windows_with_sinks(some_isa, memory, position):
    options = {"d_model": 24, "num_heads": 4, "num_kv_heads": 2, "position": position}
    specs = [AttentionSpec(pattern=one, **options) for one in PLANNED]
    sizes = {"d_model": 24, "mlp_width": 24, "positions": "none", "depth": 3}
    lm = drawn(LMConfig(vocabulary_size=V, length=64, **sizes).build(specs), seed=1).eval()
    for begin in (1, 3, 18):
        close(both(lm, memory, drawn_tokens(2, begin + 20), begin), lm)


def test_sinks_of_padded_rows():
    spec = AttentionSpec(d_model=24, num_heads=4, pattern=PLANNED[0])
    lm = built(spec, positions="none")
    close(both(lm, Dynamic(), drawn_tokens(3, 20), 6, valid=LEFT), lm)


def test_sinks_of_a_long_text(isa):
    spec = AttentionSpec(d_model=16, num_heads=2, pattern=Causal(), position=Rope())
    lm = built(spec, positions="none", depth=1, length=1300)
    for memory in (Rolling(530, sinks=4), Rolling(2000, sinks=3)):
        close(both(lm, memory, drawn_tokens(1, 1300), 1290), lm)


@pytest.mark.parametrize("memory", [Dynamic(), Quantised(block=16, recent=4)], ids=repr)
def test_threads_do_not_change_the_result(memory):
    lm = built(preset("gqa", 48, 4, causal=True, num_kv_heads=2), length=700)
    tokens = drawn_tokens(3, 650)
    before, got = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            with torch.no_grad():
                torch.set_num_threads(1)
                state, decoder = begun(lm, memory, tokens[:, :640]), NativeDecoder(lm, memory)
                torch.set_num_threads(threads)
                steps = [decoder.step(c, state) for c in tokens[:, 640:].unbind(1)]
                got.append(torch.stack(steps))
    finally:
        torch.set_num_threads(before)
    assert_close(got[1], got[0], "exact")
    assert_close(got[2], got[0], "exact")


@pytest.mark.parametrize("memory", [Dynamic(), Static(64), Rolling(6, spare=4)], ids=repr)
def test_a_state_goes_on_in_torch_and_back(memory):
    lm = built(preset("gqa", 24, 4, causal=True), positions="none")
    tokens = drawn_tokens(2, 40)
    oracle, decoder = exactly(lm), NativeDecoder(lm, memory)
    with torch.no_grad():
        states = begun(lm, memory, tokens[:, :5]), begun(oracle, memory, tokens[:, :5])

        def step(at):
            close(
                (decoder.step(tokens[:, at], states[0]), oracle.step(tokens[:, at], states[1])), lm
            )

        for at in range(5, 12):
            step(at)
        chunk = tokens[:, 12:17]
        close((lm(chunk, state=states[0]), oracle(chunk, state=states[1])), lm)
        step(17)
        for state in states:
            state.drop_last(3)
        step(18)
        close((lm.step(tokens[:, 19], states[0]), oracle.step(tokens[:, 19], states[1])), lm)
        for state in states:
            state.reorder(torch.tensor([1, 0]))
        step(20)
        for state in states:
            state.select(torch.tensor([1]))
        one = tokens[:1, 21]
        close((decoder.step(one, states[0]), oracle.step(one, states[1])), lm)
        for state in states:
            state.repeat(4)
        four = tokens[0, 22:26]
        close((decoder.step(four, states[0]), oracle.step(four, states[1])), lm)
        for state in states:
            state.reset()
        close((decoder.step(four, states[0]), oracle.step(four, states[1])), lm)


def test_a_coded_state_goes_on_in_torch():
    memory = Quantised(block=4, recent=6)
    lm = built(preset("standard", 24, 4, causal=True), positions="none")
    tokens = drawn_tokens(2, 30)
    with torch.no_grad():
        states = begun(lm, memory, tokens[:, :9]), begun(lm, memory, tokens[:, :9])
        decoder = NativeDecoder(lm, memory)
        for at in range(9, 20):
            decoder.step(tokens[:, at], states[0])
            lm.step(tokens[:, at], states[1])
        for state in states:
            state.drop_last(2)
        chunk = tokens[:, 20:25]
        got, want = lm(chunk, state=states[0]), lm(chunk, state=states[1])
        assert states[0].length == states[1].length == 23
        # the block that torch coded a call earlier is here still as it was
        assert (got - want).abs().max() < 0.02 * want.abs().max()
        close((decoder.step(tokens[:, 25], states[0]), lm.step(tokens[:, 25], states[1])), lm)


def test_one_stepper_serves_several_states_in_turn():
    lm = built(preset("standard", 24, 4, causal=True))
    oracle, decoder = exactly(lm), NativeDecoder(lm, Dynamic())
    tokens = drawn_tokens(3, 20)
    with torch.no_grad():
        native = [begun(lm, Dynamic(), row[None, : 3 + i]) for i, row in enumerate(tokens)]
        exact = [begun(oracle, Dynamic(), row[None, : 3 + i]) for i, row in enumerate(tokens)]
        for at in range(12):
            for one, other in zip(native, exact, strict=True):
                token = tokens[:1, at]
                close((decoder.step(token, one), oracle.step(token, other)), lm)


@pytest.mark.parametrize("row", [[1, 1, 0, 1, 0, 1], [1, 1, 1, 0, 0, 0]])
def test_padding_behind_real_tokens_is_refused(row):
    lm = built(preset("standard", 24, 4, causal=True))
    valid = torch.tensor([[1] * 6, row]).bool()
    with torch.no_grad():
        state = begun(lm, Dynamic(), drawn_tokens(2, 6), valid)
        with pytest.raises(ConfigError, match="padding"):
            NativeDecoder(lm, Dynamic()).step(torch.tensor([3, 4]), state)
    assert state.length == 6


def test_the_first_tokens_go_through_the_model(monkeypatch):
    lm = built(preset("standard", 24, 4, causal=True), positions="none")
    memory, tokens = Rolling(4, sinks=3), drawn_tokens(2, 8)
    decoder, lengths, step = NativeDecoder(lm, memory), [], type(lm).step

    def counted(self, tokens, state):
        lengths.append(state.length)
        return step(self, tokens, state)

    monkeypatch.setattr(type(lm), "step", counted)
    oracle = exactly(lm)
    with torch.no_grad():
        states = lm.state(memory), oracle.state(memory)
        for column in tokens.unbind(1):
            want = step(oracle, column, states[1])
            close((decoder.step(column, states[0]), want), lm)
    assert lengths == [0, 1, 2]
    assert states[0].length == 8


def test_integers_of_any_kind_are_tokens():
    lm = built(preset("standard", 24, 4, causal=True))
    tokens = drawn_tokens(2, 5)
    want = both(lm, Dynamic(), tokens, 3)[0]
    assert_close(both(lm, Dynamic(), tokens.int(), 3)[0], want, "exact")
    assert_close(both(lm, Dynamic(), tokens.t().contiguous().t(), 3)[0], want, "exact")


@pytest.mark.parametrize("wrong", [-1, V, 1 << 40])
def test_ids_out_of_range_are_refused_before_anything_is_read(wrong):
    lm = built(preset("standard", 24, 4, causal=True))
    with torch.no_grad():
        state = begun(lm, Dynamic(), drawn_tokens(2, 3))
        with pytest.raises(ConfigError, match=f"id {wrong}"):
            NativeDecoder(lm, Dynamic()).step(torch.tensor([3, wrong]), state)
    assert state.length == 3


@pytest.mark.parametrize("other", [Rolling(4), Quantised(), Static(9)], ids=repr)
def test_a_state_of_another_memory_is_refused(other):
    lm = built(preset("standard", 24, 4, causal=True))
    with torch.no_grad():
        state = begun(lm, other, drawn_tokens(1, 3))
        with pytest.raises(ConfigError, match=r"of Dynamic\(\)"):
            NativeDecoder(lm, Dynamic()).step(torch.tensor([3]), state)
    assert state.length == 3


def test_a_state_of_another_model_is_refused():
    lm = built(preset("standard", 24, 4, causal=True))
    for other in (preset("gqa", 24, 4, causal=True), preset("standard", 48, 4, causal=True)):
        with torch.no_grad():
            state = begun(built(other), Dynamic(), drawn_tokens(1, 3))
            with pytest.raises(ConfigError, match="2 layers"):
                NativeDecoder(lm, Dynamic()).step(torch.tensor([3]), state)


def test_training_and_gradients_are_refused():
    lm = built(preset("standard", 24, 4, causal=True), dropout=0.5)
    decoder, one = NativeDecoder(lm, Dynamic()), torch.tensor([3])
    with torch.no_grad():
        state = begun(lm, Dynamic(), drawn_tokens(1, 3))
    with pytest.raises(ConfigError, match="no gradients"):
        decoder.step(one, state)
    decoder.train()
    assert decoder.training
    assert lm.training
    with torch.no_grad(), pytest.raises(ConfigError, match="no dropout"):
        decoder.step(one, state)
    assert state.length == 3


def test_texts_beyond_learned_positions_are_refused():
    lm = built(preset("standard", 24, 4, causal=True), length=8)
    tokens = drawn_tokens(1, 9)
    close(both(lm, Dynamic(), tokens[:, :8], 5), lm)
    with torch.no_grad():
        state, decoder = begun(lm, Dynamic(), tokens[:, :7]), NativeDecoder(lm, Dynamic())
        decoder.step(tokens[:, 7], state)
        with pytest.raises(ShapeError, match="9 tokens"):
            decoder.step(tokens[:, 8], state)
    assert state.length == 8


def test_a_full_memory_and_other_rows_are_refused():
    lm = built(preset("standard", 24, 4, causal=True))
    tokens = drawn_tokens(2, 9)
    for memory in (Static(6), Quantised(Static(6), block=2, recent=0)):
        with torch.no_grad():
            state, decoder = begun(lm, memory, tokens[:, :5]), NativeDecoder(lm, memory)
            decoder.step(tokens[:, 5], state)
            with pytest.raises(ConfigError, match="do not fit|1 more position"):
                decoder.step(tokens[:, 6], state)
            assert state.length == 6
    with torch.no_grad():
        state, decoder = begun(lm, Dynamic(), tokens[:, :5]), NativeDecoder(lm, Dynamic())
        with pytest.raises(ShapeError, match="1 rows for a state of 2"):
            decoder.step(tokens[:1, 5], state)


def test_models_that_native_code_cannot_step_are_refused():
    with pytest.raises(ConfigError, match="float"):
        NativeDecoder(1.0, Dynamic())


def test_texts_beyond_what_a_mixing_reaches_are_refused():
    spec = preset("super_attention", 24, 4, causal=True, length=8)
    lm = built(spec, positions="none", length=8)
    tokens = drawn_tokens(1, 9)
    close(both(lm, Dynamic(), tokens[:, :8], 5), lm)
    with torch.no_grad():
        state, decoder = begun(lm, Dynamic(), tokens[:, :7]), NativeDecoder(lm, Dynamic())
        decoder.step(tokens[:, 7], state)
        with pytest.raises(ShapeError, match="8"):
            decoder.step(tokens[:, 8], state)
    assert state.length == 8


def test_buffers_and_tables_grow_with_the_text():
    spec = AttentionSpec(d_model=16, num_heads=2, pattern=Causal(), position=Rope())
    for positions in ("none", "sinusoidal"):
        lm = built(spec, positions=positions, depth=1, length=16)
        tokens = drawn_tokens(1, SPAN + 4)
        assert_close(*both(lm, Dynamic(), tokens, SPAN - 4), n=SPAN)
    assert_close(*coded_both(lm, Quantised(block=8, recent=3), tokens, SPAN - 4), n=SPAN)


def test_buffers_follow_rows_and_threads():
    lm = built(preset("gqa", 24, 4, causal=True))
    decoder, before = NativeDecoder(lm, Dynamic()), torch.get_num_threads()
    try:
        for threads, rows in ((1, 1), (1, 6), (4, 6), (1, 2)):
            torch.set_num_threads(threads)
            assert_close(*both(lm, Dynamic(), drawn_tokens(rows, 12), 6, decoder=decoder), n=64)
            assert decoder.buffer_sizes == (rows, SPAN, threads)
    finally:
        torch.set_num_threads(before)


def test_sinks_outside_the_window_are_not_read():
    """A memory may keep sinks that a window no longer reaches; they leave it one by one."""
    pattern = Window(7) & Causal()
    spec = AttentionSpec(d_model=24, num_heads=2, pattern=pattern, position=Rope())
    lm = built(spec, positions="none")
    for memory in (Rolling(5, sinks=4), Rolling(3, sinks=2, spare=2), Rolling(12, sinks=3)):
        assert_close(*both(lm, memory, drawn_tokens(2, 24), 5), n=64)


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("mixing", [BandedAlignment, ToeplitzAlignment, BlockAlignment, Alignment])
@pytest.mark.parametrize("memory", [Dynamic(), Rolling(3)], ids=repr)
@torch.no_grad()
def test_mixed_values_from_the_first_token_on(mixing, per_head, memory):
    """Before and after the width of the mixing, of rows that are padded differently."""
    sizes = {Alignment: (40,), BandedAlignment: (40, 5)}.get(mixing, (5,))
    start = "orthogonal" if mixing in SQUARE else "glorot"
    spec = AttentionSpec(
        d_model=16, num_heads=4, num_kv_heads=2, pattern=Causal(),
        mixing=mixing(*sizes, per_head=per_head, init=start),
    )  # fmt: skip
    if mixing is Alignment and memory.window is not None:
        pytest.skip("reads every earlier value")
    lm = LMConfig(vocabulary_size=11, length=40, d_model=16, depth=2, mlp_width=8).build(spec)
    lm = drawn(lm, seed=2).eval()
    tokens = torch.randint(0, 11, (3, 14), generator=torch.Generator().manual_seed(1))
    for prompt, valid in ((1, None), (4, padded(3, 4, "left"))):
        native, state = NativeDecoder(lm, memory), lm.state(memory)
        mine = native.state(memory)
        for model, one in ((native, mine), (lm, state)):
            model.features(tokens[:, :prompt], valid=valid, state=one)
        for at in range(prompt, 14):
            want, got = lm.step(tokens[:, at], state), native.step(tokens[:, at], mine)
            assert_close(got, want, n=64)


SQUARE = (Alignment, BlockAlignment)


@pytest.mark.parametrize(
    "memory",
    [Dynamic(), Rolling(300), Rolling(530, sinks=2), Quantised(block=16, recent=9)],
    ids=repr,
)
@torch.no_grad()
def test_steps_past_one_piece_of_the_cache(memory):
    """Pieces have 512 positions, and begin inside a buffer that a window moves through."""
    spec = AttentionSpec(d_model=16, num_heads=4, num_kv_heads=2, pattern=Causal(), position=Rope())
    lm = LMConfig(vocabulary_size=11, length=700, d_model=16, depth=1, mlp_width=8).build(spec)
    lm = drawn(lm, seed=2).eval()
    tokens = torch.randint(0, 11, (2, 560), generator=torch.Generator().manual_seed(1))
    native, state = NativeDecoder(lm, memory), lm.state(memory)
    mine = native.state(memory)
    for model, one in ((native, mine), (lm, state)):
        model.features(tokens[:, :500], valid=None, state=one)
    for at in range(500, 560):
        want, got = lm.step(tokens[:, at], state), native.step(tokens[:, at], mine)
        assert_close(got, want, n=1024)
