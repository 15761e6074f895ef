"""Positions that are known up to a length: every reader of texts refuses longer ones."""

from __future__ import annotations

import tempfile

import pytest
import torch

from suffice import Attention, AttentionSpec
from suffice.convert.sources import open_source
from suffice.errors import ConfigError, ShapeError
from suffice.generate import generate, slide
from suffice.memory import Dynamic, Quantised, Rolling
from suffice.models import LMConfig
from suffice.models.architectures.rope import rope_parameters
from suffice.models.native_decoder import NativeDecoder, unsupported
from suffice.patterns import Causal, Window
from suffice.positions import LinearScaling, PairScaling, Rope
from suffice.testing import assert_close, drawn

V, LENGTH = 23, 12
FREE = AttentionSpec(d_model=16, num_heads=2, pattern=Causal(), position=Rope())
KNOWN = AttentionSpec(d_model=16, num_heads=2, pattern=Causal(), position=Rope(length=LENGTH))


def model(*specs):
    config = LMConfig(
        vocabulary_size=V, length=LENGTH, d_model=16, depth=2, mlp_width=24, positions="none"
    )
    return drawn(config.build(specs if len(specs) > 1 else specs[0]), seed=1).eval()


def texts(length, rows=2):
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(length))


def left(n):
    """Two rows, the second of n tokens behind 5 of padding and the first of fewer."""
    valid = torch.ones(2, n + 5, dtype=torch.bool)
    valid[:, :5] = valid[0, :8] = False
    return texts(n + 5), valid


def whole(lm, n):
    return lm(texts(n))


def padded_left(lm, n):
    x, valid = left(n)
    return lm(x, valid=valid)[1, 5:]


def padded_right(lm, n):
    x, valid = left(n)
    return lm(x.flip(1), valid=valid.flip(1))[1, :n]


def documents(lm, n):
    x = texts(n + 4, rows=1)
    return lm(x, segments=(torch.arange(n + 4) >= 4).long()[None])[:, 4:]


def chunks(lm, n, *, sizes=(3, 4), memory=None, valid=None):
    x, state, outs = texts(n) if valid is None else left(n)[0], lm.state(memory or Dynamic()), []
    while (at := state.length) < x.shape[1]:
        piece = slice(at, at + sizes[at % len(sizes)])
        mask = None if valid is None else valid[:, piece]
        try:
            outs.append(lm(x[:, piece], valid=mask, state=state))
        except ShapeError:
            assert state.length == at  # refused before any layer has changed
            raise
    return torch.cat(outs, dim=1)


def tokens(lm, n):
    return chunks(lm, n, sizes=(1,))


def rolling(lm, n):
    return chunks(lm, n, memory=Rolling(64))


def coded(lm, n):
    return chunks(lm, n, memory=Quantised(bits=8, group=8))


def padded_chunks(lm, n):
    return chunks(lm, n, valid=left(n)[1])[1, 5:]


def native(lm, n):
    if reason := unsupported(lm, Dynamic()):
        pytest.skip(reason)
    decoder, state = NativeDecoder(lm, Dynamic()), lm.state()
    with torch.inference_mode():
        return torch.stack([decoder.step(column, state) for column in texts(n).T], dim=1)


def written(lm, n):
    return generate(lm, texts(n - 3), max_new_tokens=4).tokens


def written_padded(lm, n):
    x, valid = left(n - 3)
    return generate(lm, x, valid=valid, max_new_tokens=4).tokens


def steps_of_a_layer(lm, n):
    layer = lm.blocks[1].attention
    state = layer.state()
    x = torch.randn(1, n, 16, generator=torch.Generator().manual_seed(0))
    return torch.cat([layer(x[:, :2], state=state), layer(x[:, 2:], state=state)], dim=1)


READERS = [
    whole, padded_left, padded_right, documents, chunks, tokens, rolling, coded, padded_chunks,
    native, written, written_padded, steps_of_a_layer,
]  # fmt: skip


@pytest.mark.parametrize("late", [False, True], ids=["every layer", "the last layer"])
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_every_reader_takes_the_length_and_refuses_more(reader, late):
    free, known = model(FREE), model(FREE, KNOWN) if late else model(KNOWN)
    known.load_state_dict(free.state_dict())
    with torch.no_grad():
        got, want = reader(known, LENGTH), reader(free, LENGTH)
        exact = {"kind": "exact"} if got.dtype is torch.int64 else {"n": 64}
        assert_close(got, want, **exact)
        for longer in (LENGTH + 1, LENGTH + 9):
            reader(free, longer)
            with pytest.raises((ShapeError, ConfigError), match=rf"\b{LENGTH}\b"):
                reader(known, longer)


def test_generation_slides():
    assert len(slide(model(KNOWN), [1, 2, 3], max_new_tokens=20)) >= 20


def test_a_graph_gives_no_number_beyond_the_length():
    layer = Attention(KNOWN).eval()
    valid = torch.ones(1, LENGTH + 4, dtype=torch.bool)
    valid[0, :3] = False

    def longer(x):
        return layer(x, valid=valid)

    graph = torch.compile(longer, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert graph(torch.randn(1, LENGTH + 4, 16))[0, LENGTH + 3].isnan().all()
        valid[0, 3] = False
        assert graph(torch.randn(1, LENGTH + 4, 16)).isfinite().all()


def test_specs_without_a_length_are_stored_as_before():
    assert "length" not in Rope().to_json()
    for value in (Rope(), Rope(length=7)):
        assert Rope.from_json(value.to_json()) == value
    with pytest.raises(ConfigError, match="length=0"):
        Rope(length=0)


FACTORS = {"short_factor": [1.0, 1.1, 1.5, 2.5, 4.0], "long_factor": [2.0, 3.0, 5.0, 8.0, 9.0]}


@pytest.mark.parametrize(
    ("kind", "scaling", "length"), [("longrope", FACTORS, 32), ("dynamic", {"factor": 4.0}, 128)]
)
def test_models_whose_frequencies_change_are_read_up_to_there(kind, scaling, length):
    t = pytest.importorskip("transformers")
    made, sizes = (t.Phi3ForCausalLM, {}) if kind == "longrope" else (t.LlamaForCausalLM, {})
    if kind == "longrope":
        sizes["original_max_position_embeddings"] = length
    config = made.config_class(
        vocab_size=V, hidden_size=40, intermediate_size=51, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=128, pad_token_id=0, bos_token_id=None,
        eos_token_id=None, rope_parameters={"rope_type": kind, "rope_theta": 1e4, **scaling},
        **sizes,
    )  # fmt: skip
    theirs = drawn(made(config), seed=1).eval()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        theirs.save_pretrained(folder)
        lm = open_source(folder).model
        x = texts(length)
        assert_close(lm(x), theirs(x).logits, n=1024)
        with pytest.raises(ShapeError, match=str(length)):
            lm(texts(length + 1))
    rope = lm.specs[0].position
    again = rope_parameters(rope, 10, length)  # what an export writes is read with the same limit
    assert (again["rope_type"], rope.length) == (kind, length)


def test_a_limit_that_transformers_cannot_say_is_not_exported():
    assert (
        rope_parameters(Rope(length=9, scaling=PairScaling((2.0,))), 2, 20)[
            "original_max_position_embeddings"
        ]
        == 9
    )
    with pytest.raises(ConfigError, match="length=9"):
        rope_parameters(Rope(length=9, scaling=LinearScaling(2.0)), 8, 20)


def test_a_window_does_not_hide_that_a_text_is_too_long():
    lm = model(AttentionSpec(
        d_model=16, num_heads=2, pattern=Window(3) & Causal(), position=Rope(length=LENGTH)
    ))  # fmt: skip
    for reader in (whole, tokens, native):
        with torch.no_grad(), pytest.raises(ShapeError, match=str(LENGTH)):
            reader(lm, LENGTH + 1)
