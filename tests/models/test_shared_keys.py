"""Models in which layers read the keys, values and cache of earlier ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suffice import Attention, AttentionSpec, preset
from suffice.combine import Differential
from suffice.encoders import MLA, Efficient, HeadRMS
from suffice.errors import ConfigError
from suffice.kernels import Elu
from suffice.layers.inputs import SharedKV
from suffice.memory import Dynamic, Quantised, Rolling, Static
from suffice.memory.past import Infini
from suffice.mixing import Alignment, BandedAlignment
from suffice.models import LMConfig, folder
from suffice.models.configurations import layers
from suffice.models.native_decoder import NativeDecoder, unsupported
from suffice.patterns import Block, Causal, Window
from suffice.positions import Alibi, Rope
from suffice.presets import schedule, share
from suffice.testing import assert_close, documents, drawn, padded
from suffice.train.language import gradient_checkpointing
from tests.models.native_cases import CODED, EXACT, composition
from tests.ops.native.codings import needs_kernels

D, HEADS, V, LENGTH, DEPTH = 24, 4, 31, 36, 5
PLAIN = AttentionSpec(d_model=D, num_heads=HEADS, num_kv_heads=2, pattern=Causal())
ROPE = replace(PLAIN, position=Rope())
FORMS = {
    "plain": PLAIN,
    "rotary": ROPE,
    "alibi": replace(PLAIN, position=Alibi()),
    "normed": replace(ROPE, norm=HeadRMS(1e-3)),
    "columns": replace(PLAIN, num_kv_heads=None, encoder=Efficient()),
    "differential": replace(PLAIN, num_heads=2, combine=Differential()),
    "mixed": replace(PLAIN, mixing=Alignment(LENGTH)),
    "banded": replace(PLAIN, mixing=BandedAlignment(LENGTH, width=3)),
}
SHARES = {
    "pairs": 2,
    "threes": 3,
    "upper half": (None, None, 1, 1, 1),
    "crossed": (None, None, 0, 1, 0),
}
MEMORIES = (Dynamic(), Static(LENGTH), Rolling(LENGTH), Rolling(LENGTH, spare=4))
PIECES = ([36], [1] * 36, [5, 9, 1, 1, 20], [35, 1])
forms = pytest.mark.parametrize("form", FORMS)
kinds = pytest.mark.parametrize("shares", SHARES)


def config(**changes):
    sizes = {"vocabulary_size": V, "length": LENGTH, "d_model": D, "depth": DEPTH, "mlp_width": 32}
    return LMConfig(**{**sizes, "positions": "none", **changes})


def build(spec, shares, **changes):
    sizes = config(**changes)
    specs = share([spec] * sizes.depth, shares)
    return drawn(sizes.build(specs), seed=2).double().eval()


def ids(batch=3, length=LENGTH):
    return torch.randint(V, (batch, length), generator=torch.Generator().manual_seed(4))


def streamed(lm, tokens, pieces, state, valid=None):
    at, outs = 0, []
    for piece in pieces:
        here = slice(at, at + piece)
        marks = None if valid is None else valid[:, here]
        outs.append(lm(tokens[:, here], valid=marks, state=state))
        at += piece
        assert {layer.length for layer in state.layers} == {at}
    return torch.cat(outs, dim=1)


def mistaken(lm):
    """The same model whose layers each make their own keys and values of random maps."""
    specs = [replace(spec, shares=None) for spec in lm.specs]
    other = drawn(lm.config.build(specs), seed=3).double().eval()
    other.load_state_dict(lm.state_dict(), strict=False)
    return other


@pytest.mark.parametrize(
    ("form", "shares"),
    [(f, s) for i, f in enumerate(FORMS) for j, s in enumerate(SHARES) if (i + j) % 2 == 0],
)
@torch.no_grad()
def test_any_pieces_are_one_call(form, shares):
    lm, tokens = build(FORMS[form], SHARES[shares]), ids()
    want = lm(tokens)
    assert (want - mistaken(lm)(tokens)).abs().max() > 0.1  # the shared ones are what is read
    rolls = FORMS[form].mixing.history is not None or not FORMS[form].mixing.mixes
    for number, memory in enumerate(MEMORIES if rolls else MEMORIES[:2]):
        for pieces in PIECES if number == 0 else PIECES[number : number + 1]:
            state = lm.state(memory)
            assert_close(streamed(lm, tokens, pieces, state), want, n=D)


@pytest.mark.parametrize("side", ["left", "inside", "right"])
@pytest.mark.parametrize("form", ["plain", "rotary", "alibi", "columns", "banded"])
@torch.no_grad()
def test_padded_rows_give_what_they_give_alone(form, side):
    lm, tokens = build(FORMS[form], 2), ids()
    valid = padded(3, LENGTH, side, seed=4)
    want = lm(tokens, valid=valid)
    for row in range(3):
        alone = lm(tokens[row : row + 1, valid[row]])
        assert_close(want[row, valid[row]], alone[0], n=D)
    for pieces in PIECES:
        got = streamed(lm, tokens.masked_fill(~valid, 5), pieces, lm.state(), valid)
        assert_close(got[valid], want[valid], n=D)
    if side == "left":
        got = streamed(lm, tokens, PIECES[2], lm.state(Rolling(LENGTH)), valid)
        assert_close(got[valid], want[valid], n=D)


@forms
@torch.no_grad()
def test_documents_are_kept_apart(form):
    lm, tokens = build(FORMS[form], 2), ids()
    segments = documents(3, LENGTH, seed=6)
    got = lm(tokens, segments=segments)
    for row in range(3):
        for number in segments[row].unique():
            here = segments[row] == number
            assert_close(got[row, here], lm(tokens[row : row + 1, here])[0], n=D)


@kinds
@torch.no_grad()
def test_rows_move_and_tokens_are_dropped(shares):
    lm, tokens = build(ROPE, SHARES[shares]), ids()
    valid = padded(3, LENGTH, "left", seed=4)
    want = lm(tokens, valid=valid)
    rows = torch.tensor([2, 0, 0, 1])
    for memory in (Dynamic(), Rolling(LENGTH, spare=5)):
        state = lm.state(memory)
        lm(tokens[:, :20], valid=valid[:, :20], state=state)
        lm(tokens[:, 30:34], valid=valid[:, 30:34], state=state)
        assert state.can_drop(4)
        state.drop_last(4)
        copy = state.fork()
        state.select(rows)
        for one, order in ((state, rows), (copy, torch.arange(3))):
            assert {layer.length for layer in one.layers} == {20}
            marks = valid[order, 20:]
            got = lm(tokens[order, 20:], valid=marks, state=one)
            assert_close(got[marks], want[order, 20:][marks], n=D)
        copy.reset()
        assert_close(lm(tokens[:1, :9], state=copy), lm(tokens[:1, :9]), n=D)


@torch.no_grad()
def test_a_state_is_as_large_as_its_makers():
    tokens = ids()
    for spec in (PLAIN, ROPE, replace(PLAIN, pattern=Window(8) & Causal())):
        for memory in (Static(LENGTH), Rolling(8), Quantised(Static(LENGTH), block=4, recent=0)):
            sizes = []
            for shares in (None, 2):
                specs = [spec] * 4 if shares is None else share([spec] * 4, shares)
                lm = drawn(config(depth=4).build(specs), seed=2).eval()
                state = lm.state(memory)
                lm(tokens, state=state)
                sizes.append(state.nbytes)
                counted = sum(s.state_bytes(LENGTH, memory) for s in lm.specs)
                assert counted <= state.nbytes
            assert sizes[0] == 2 * sizes[1]


@torch.no_grad()
def test_a_short_memory_is_a_window_of_every_layer():
    lm, tokens = build(ROPE, (None, None, 0, 1, 1)), ids()
    near = build(replace(ROPE, pattern=Window(6) & Causal()), (None, None, 0, 1, 1))
    state = lm.state(Rolling(6))
    assert not state.exact
    assert_close(streamed(lm, tokens, PIECES[2], state), near(tokens), n=D)


@torch.no_grad()
def test_a_memory_that_a_mixing_widens_is_known_to_readers():
    """Padded rows count positions of as many tokens as the maker's cache holds."""
    spec = replace(PLAIN, mixing=BandedAlignment(LENGTH, width=6))
    lm, tokens = build(spec, 2), ids()
    valid = padded(3, LENGTH, "left", seed=4)
    for memory in (Rolling(2), Rolling(9)):
        got = streamed(lm, tokens, PIECES[2], lm.state(memory), valid)
        for row in range(3):
            text, state = tokens[row : row + 1, valid[row]], lm.state(memory)
            alone = torch.cat([lm(token, state=state) for token in text.split(1, dim=1)], dim=1)
            assert_close(got[row, valid[row]], alone[0], n=D)


@torch.no_grad()
def test_a_reader_may_see_less_or_more_than_its_maker():
    specs = [replace(ROPE, pattern=Window(4) & Causal()), ROPE, ROPE]
    specs[1] = replace(ROPE, shares=0)
    specs[2] = replace(specs[0], shares=0)
    lm, tokens = drawn(config(depth=3).build(specs), seed=2).double().eval(), ids()
    want = lm(tokens)
    for pieces in PIECES:
        assert_close(streamed(lm, tokens, pieces, lm.state()), want, n=D)
    state = lm.state(Rolling(4))
    assert [layer.exact for layer in state.layers] == [True, False, True]


@pytest.mark.parametrize("memory", CODED, ids=repr)
@torch.no_grad()
def test_readers_see_the_rounded_keys_that_their_maker_sees(memory):
    """A reader with its maker's maps on its maker's input gives its maker's output."""
    spec = replace(PLAIN, pattern=Causal(), num_kv_heads=None)
    maker = drawn(Attention(spec), seed=3).eval()
    reader = Attention(replace(spec, shares=0)).eval()
    reader.load_state_dict({n: maker.state_dict()[n] for n in reader.state_dict()})
    states = maker.state(memory), reader.state(memory)
    states[1].remembered = states[0].remembered
    x = torch.randn(2, LENGTH, D, generator=torch.Generator().manual_seed(1))
    for a, b in ((0, 7), (7, 8), (8, 9), (9, 30), (30, LENGTH)):
        shared = SharedKV()
        want = maker(x[:, a:b], state=states[0], shared=shared)
        assert_close(reader(x[:, a:b], state=states[1], shared=shared), want, n=D)


@forms
def test_training_reaches_every_weight_and_checkpoints(form):
    lm, tokens = build(FORMS[form], 2), ids()
    gradients = []
    for enabled in (False, True):
        lm.zero_grad()
        with gradient_checkpointing(lm, enabled):
            lm.train()(tokens).square().mean().backward()
        gradients.append({name: p.grad.clone() for name, p in lm.named_parameters()})
    for name, grad in gradients[0].items():
        assert float(grad.abs().max()) > 0 or name.endswith("k_proj.bias"), name
        assert_close(gradients[1][name], grad, n=D)


def test_gradients_of_a_stream_are_those_of_one_call():
    lm, tokens = build(ROPE, 2), ids()
    lm(tokens).square().mean().backward()
    want = {name: p.grad.clone() for name, p in lm.named_parameters()}
    lm.zero_grad()
    streamed(lm, tokens, PIECES[2], lm.state()).square().mean().backward()
    for name, p in lm.named_parameters():
        assert_close(p.grad, want[name], n=D)


def test_saved_and_loaded(tmp_path):
    lm, tokens = build(ROPE, 2).float(), ids()
    folder.save(tmp_path / "run", lm)
    stored = folder.read(tmp_path / "run").model
    assert stored.specs == lm.specs
    assert [spec.shares for spec in stored.specs] == [None, 0, None, 2, None]
    with torch.no_grad():
        assert torch.equal(stored(tokens), lm(tokens))


def test_a_folder_that_shares_wrongly_is_refused(tmp_path):
    lm = build(ROPE, 2).float()
    folder.save(tmp_path / "run", lm)
    path = tmp_path / "run" / "config.json"
    text = path.read_text()
    assert text.count('"shares": 2') == 1
    for wrong in ("4", "-1", '"2"', "true", "1"):
        path.write_text(text.replace('"shares": 2', f'"shares": {wrong}'))
        with pytest.raises(ValueError, match="shares"):
            folder.read(tmp_path / "run")


@needs_kernels
@pytest.mark.parametrize("seed", range(24))
@torch.no_grad()
def test_a_native_step_is_the_models_step(seed):
    """Of drawn compositions, with memories that keep all numbers as they are."""
    spec, sizes = composition(seed)
    sizes = {**sizes, "vocabulary_size": V, "length": LENGTH}
    shares = (2, 3, (None, None, 0, 1))[seed % 3]
    lm = drawn(LMConfig(**sizes, depth=4).build(share([spec] * 4, shares)), seed=seed).eval()
    tokens = ids(length=20)
    valid = padded(3, 20, "left", seed=seed) if seed % 2 else None
    for memory in (EXACT[seed % len(EXACT)], Dynamic()):
        marks = valid if not memory.sinks else None
        if unsupported(lm, memory):
            pytest.fail(unsupported(lm, memory))
        decoder = NativeDecoder(lm, memory)
        states = [lm.state(memory) for _ in range(2)]
        first = None if marks is None else marks[:, :8]
        for state in states:
            lm(tokens[:, :8], valid=first, state=state)
        for column in tokens[:, 8:].unbind(1):
            got, want = decoder.step(column, states[0]), lm.step(column, states[1])
            assert_close(got, want, n=max(lm.config.d_model, lm.config.mlp_width, LENGTH))


@needs_kernels
@pytest.mark.parametrize("memory", CODED, ids=repr)
@torch.no_grad()
def test_a_native_step_reads_shared_codes(memory):
    lm = drawn(config(depth=4).build(share([ROPE] * 4, 2)), seed=2).eval()
    tokens, decoder, state = ids(), NativeDecoder(lm, memory), lm.state(memory)
    lm(tokens[:, :8], state=state)
    for column in tokens[:, 8:].unbind(1):
        settled = state.fork()
        for layer in settled.layers[::2]:
            layer.store.encode_tail()
        want = lm.step(column, settled)
        got = decoder.step(column, state)
        assert (got - want).abs().max() <= 1e-3


def test_what_does_not_go_together():
    refused = {
        "encoder": {"encoder": MLA(rank=4, rotary_dim=2), "num_kv_heads": None},
        "kernel": {"kernel": Elu()},
        "mixing": {"mixing": Alignment(LENGTH)},
        "past": {"past": Infini(4), "pattern": Block(4) & Causal()},
        "d_source": {"d_source": D},
    }
    for field, changes in refused.items():
        with pytest.raises(ConfigError, match=f"shares=0: .*{field}"):
            replace(PLAIN, shares=0, **changes)
    for wrong in (-1, True, 1.0, "0"):
        with pytest.raises(ConfigError, match="shares"):
            replace(PLAIN, shares=wrong)


@pytest.mark.parametrize(
    ("specs", "match"),
    [
        ([PLAIN, replace(PLAIN, shares=1)], "block 1 has shares=1, .*legal: 0"),
        ([replace(PLAIN, shares=0), PLAIN], "block 0 has shares=0, .*none"),
        ([PLAIN, replace(PLAIN, shares=0), replace(PLAIN, shares=1)], "block 2 .*legal: 0"),
        ([replace(PLAIN, num_kv_heads=1), replace(PLAIN, shares=0)], "num_kv_heads=2, not 1"),
        ([PLAIN, replace(ROPE, shares=0)], "position="),
        ([PLAIN, replace(PLAIN, norm=HeadRMS(), shares=0)], "norm="),
        ([PLAIN, replace(PLAIN, head_dim=8, shares=0)], "head_dim=8, not 6"),
        (
            [preset("linear", D, HEADS, causal=True), replace(PLAIN, num_kv_heads=None, shares=0)],
            "Elu",
        ),
    ],
    ids=["itself", "first", "a reader", "kv heads", "position", "norm", "width", "sums"],
)
def test_layers_that_cannot_share(specs, match):
    with pytest.raises(ConfigError, match=match):
        config(depth=len(specs)).build(specs)


def test_schedules():
    specs = schedule("super_attention", D, HEADS, depth=4, causal=True, length=LENGTH, shares=2)
    assert [spec.shares for spec in specs] == [None, 0, None, 2]
    assert ["mixing" in spec.beyond_pairs for spec in specs] == [True, False, True, False]
    assert [s.shares for s in schedule("cla", D, HEADS, depth=5, group=3)] == [None, 0, 0, None, 3]
    specs = layers("gqa", config(), HEADS, position=Rope(), window=4, shares=2)
    assert [spec.shares for spec in specs] == [None, 0, None, 2, None]
    assert all(spec.position == Rope() for spec in specs)
    for shares, match in ((0, "shares=0"), ((None, 0), "2 entries for 4"), ("2", "shares='2'")):
        with pytest.raises(ConfigError, match=match):
            schedule("gqa", D, HEADS, depth=4, shares=shares)


def test_a_layer_alone_says_what_it_needs():
    layer = Attention(replace(PLAIN, shares=2))
    with pytest.raises(ConfigError, match="layer 2 of its model"):
        layer(torch.zeros(1, 3, D))
    with pytest.raises(ConfigError, match="has not been called"):
        layer(torch.zeros(1, 3, D), shared=SharedKV())
