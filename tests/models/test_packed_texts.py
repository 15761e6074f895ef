"""Padded texts are computed as one row of documents where that pays, and give the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suffice import AttentionSpec
from suffice.models import ClassifierConfig
from suffice.models import classifier as module
from suffice.patterns import Full, Strided, Window
from suffice.positions import Alibi, Rope
from suffice.testing import assert_close, drawn

SIZES = ClassifierConfig(
    vocabulary_size=13, length=70, num_classes=3, d_model=16, depth=2, mlp_width=24, eps=1e-5
)
ROTARY = replace(SIZES, positions="none", norm="pre", final_norm=True, activation="geglu")
LENGTHS = (70, 33, 9, 1)
NEAR = AttentionSpec(d_model=16, num_heads=2, pattern=Window(6), position=Rope())
WIDE = replace(NEAR, pattern=Full(), num_kv_heads=1)


@pytest.fixture(autouse=True)
def eager_to_pack(monkeypatch):
    monkeypatch.setattr(module, "PACKED_SAVING", 0)


def texts(*, left=False):
    tokens = torch.randint(1, 13, (len(LENGTHS), 70), generator=torch.Generator().manual_seed(2))
    valid = torch.arange(70)[None] < torch.tensor(LENGTHS)[:, None]
    return tokens, valid.flip(1) if left else valid


def rows_read(model, tokens, valid):
    """Return the answer, and the shape of what the first block reads."""
    shapes = []
    hook = model.blocks[0].register_forward_pre_hook(lambda _, args: shapes.append(args[0].shape))
    answer = model(tokens, valid)
    hook.remove()
    return answer, tuple(shapes[0])


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        SIZES,
        replace(SIZES, positions="sinusoidal", pooling="first"),
        ROTARY,
        replace(ROTARY, pooling="late", head_widths=(5,), head_norm=True, bias=False),
        replace(ROTARY, num_classes=None, embedding_norm=True, first_norm=False),
    ],
    ids=["learned", "sinusoidal-first", "rotary", "late", "bare"],
)
def test_packed_texts_give_what_each_gives_alone(config, left):
    model = drawn(config.build([NEAR, WIDE]), seed=1).eval()
    tokens, valid = texts(left=left)
    with torch.no_grad():
        packed, shape = rows_read(model, tokens, valid)
        alone = [model(row[real][None]) for row, real in zip(tokens, valid, strict=True)]
    assert shape == (1, sum(LENGTHS), 16)
    assert_close(packed, torch.cat(alone))


def test_the_logits_of_each_token_are_where_it_stands():
    model = drawn(replace(ROTARY, pooling="none").build([NEAR, WIDE]), seed=1).eval()
    tokens, valid = texts(left=True)
    with torch.no_grad():
        packed, _ = rows_read(model, tokens, valid)
        for row, real, got in zip(tokens, valid, packed, strict=True):
            assert_close(got[real], model(row[real][None])[0])
            assert not got[~real].any()


def test_gradients_are_those_of_padded_rows(monkeypatch):
    model, (tokens, valid) = drawn(ROTARY.build([NEAR, WIDE]), seed=1), texts()

    def gradients():
        model.zero_grad()
        model(tokens, valid).square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    packed = gradients()
    monkeypatch.setattr(module, "PACKED_SAVING", float("inf"))
    for got, want in zip(packed, gradients(), strict=True):
        assert_close(got, want)


ALIBI = replace(NEAR, position=Alibi())
PADDED = {
    "biases": (ROTARY, [ALIBI, ALIBI], {}),
    "no band": (ROTARY, [NEAR, replace(WIDE, pattern=Strided(4))], {}),
    "dropout": (replace(ROTARY, dropout=0.1), [NEAR, WIDE], {"training": True}),
    "dropped weights": (ROTARY, [NEAR, replace(WIDE, dropout=0.1)], {"training": True}),
    "compiled": (ROTARY, [NEAR, WIDE], {"compiled": True}),
}


@pytest.mark.parametrize("case", PADDED)
def test_other_models_read_padded_rows(case, monkeypatch):
    config, specs, how = PADDED[case]
    model = config.build(specs).train(how.get("training", False))
    if how.get("compiled"):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    _, shape = rows_read(model, *texts())
    assert shape == (4, 70, 16)


def test_rows_of_padding_alone_stay():
    model = drawn(ROTARY.build([NEAR, WIDE]), seed=1).eval()
    tokens, valid = texts()
    with torch.no_grad():
        assert model(tokens, torch.zeros_like(valid)).isfinite().all()
        answer, shape = rows_read(model, tokens, valid & torch.tensor([[True]] * 3 + [[False]]))
        assert_close(answer[:3], model(tokens, valid)[:3])
    assert shape == (1, sum(LENGTHS[:3]), 16)


def test_whole_rows_are_read_without_a_mask():
    calls = []
    model = ROTARY.build([NEAR, WIDE])
    model.blocks[0].register_forward_pre_hook(
        lambda _, args, call: calls.append(call), with_kwargs=True
    )
    tokens, valid = texts()
    model(tokens, torch.ones_like(valid))
    assert calls == [{"valid": None}]


def test_little_padding_stays(monkeypatch):
    monkeypatch.setattr(module, "PACKED_SAVING", 1 << 16)
    _, shape = rows_read(ROTARY.build([NEAR, WIDE]), *texts())
    assert shape == (4, 70, 16)
