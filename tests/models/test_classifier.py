from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suffice import preset
from suffice.errors import MaskError, ShapeError
from suffice.models import ClassifierConfig
from suffice.presets import needs_length
from suffice.testing import assert_close, drawn

from . import formulas

SMALL = ClassifierConfig(
    vocabulary_size=13,
    length=7,
    num_classes=3,
    d_model=8,
    depth=2,
    mlp_width=10,
    head_widths=(6,),
)
LENGTHS = (7, 4, 1)


def build(config, mechanism="standard", heads=2):
    length = {"length": config.length} if needs_length(mechanism) else {}
    model = config.build(preset(mechanism, config.d_model, heads, **length))
    return drawn(model, seed=1).double().eval()


def texts(length=7):
    return torch.randint(1, 13, (3, length), generator=torch.Generator().manual_seed(6))


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
@pytest.mark.parametrize("length", [7, 4])
def test_forward_is_the_formula(length, norm, activation, positions):
    model = build(replace(SMALL, norm=norm, activation=activation, positions=positions))
    assert any(n.startswith("positions") for n in model.state_dict()) is (positions == "learned")
    tokens = texts(length)
    want = torch.stack([formulas.classifier(model, row) for row in tokens])
    assert_close(model(tokens), want)


def test_pooling_the_first_token():
    config = replace(SMALL, embedding_norm=True, pooling="first", head_activation="tanh")
    model, tokens = build(config), texts()
    for row, got in zip(tokens, model(tokens), strict=True):
        x = formulas.placed(model.tokens.weight[row], model)
        x = formulas.norm(x, model.embedding_norm)
        for block in model.blocks:
            x = formulas.block(x, block, torch.ones(7), formulas.relu)
        assert_close(got, formulas.head(x[0], model.head, torch.tanh))


@pytest.mark.parametrize("positions", ["sinusoidal", "none"])
def test_texts_longer_than_in_training(positions):
    """Nothing but learned positions and the attention itself knows a longest text."""
    model, tokens = build(replace(SMALL, positions=positions)), texts(20)
    want = torch.stack([formulas.classifier(model, row) for row in tokens])
    assert_close(model(tokens), want)
    bound = build(replace(SMALL, positions=positions), "super_attention")
    with pytest.raises(ShapeError, match="20 keys are more than the 7"):
        bound(tokens)


@pytest.mark.parametrize("positions", ["sinusoidal", "none"])
@pytest.mark.parametrize("side", ["left", "right", "inside"])
def test_padded_texts_of_other_positions(side, positions):
    model, tokens = build(replace(SMALL, positions=positions)), texts()
    alone = [model(tokens[row : row + 1, :n]) for row, n in enumerate(LENGTHS)]
    rows, valid = lay(tokens, side, 11, 0)
    assert_close(model(rows, valid=valid), torch.cat(alone))


def test_a_model_starts_as_it_is_written():
    config = replace(SMALL, vocabulary_size=500, length=50, d_model=16)
    model = config.build(preset("standard", 16, 2))
    for table in (model.tokens, model.positions):
        assert 0.049 < table.weight.abs().max().item() <= 0.05


def test_dropout_is_where_the_config_says():
    model = replace(SMALL, dropout=0.1).build(preset("standard", 8, 2))
    drops = {name: m.p for name, m in model.named_modules() if type(m).__name__ == "Dropout"}
    for block in ("blocks.0.", "blocks.1."):
        assert drops.pop(f"{block}attention.dropout") == 0.0
        assert drops.pop(f"{block}mlp.inner_dropout") == 0.0
        assert drops.pop(f"{block}dropout") == drops.pop(f"{block}mlp.dropout") == 0.1
    assert drops == {"dropout": 0.1, "head.2": 0.1}


# padding


def lay(tokens, side, width, junk):
    """Put texts of LENGTHS into rows of `width` with padding on one side."""
    rows = torch.full((len(tokens), width), junk)
    valid = torch.zeros(len(tokens), width, dtype=torch.bool)
    for row, length in enumerate(LENGTHS):
        at = {
            "left": torch.arange(width - length, width),
            "right": torch.arange(length),
            "inside": torch.arange(width)[torch.linspace(0, width - 1, length).long()],
        }[side]
        rows[row, at] = tokens[row, :length]
        valid[row, at] = True
    return rows, valid


@pytest.mark.parametrize(
    "mechanism", ["standard", "sliding_window", "super_attention", "linformer", "linear"]
)
@pytest.mark.parametrize("side", ["left", "right", "inside"])
def test_a_padded_text_gives_what_it_gives_alone(side, mechanism):
    """T6 e: whatever the side, the width and the id that stands at padding."""
    model = build(replace(SMALL, length=11), mechanism)
    tokens = texts()
    alone = [model(tokens[row : row + 1, :n]) for row, n in enumerate(LENGTHS)]
    for width in (7, 8, 11):
        for junk in (0, 5):
            rows, valid = lay(tokens, side, width, junk)
            assert_close(model(rows, valid=valid), torch.cat(alone))


def test_padding_may_hold_ids_that_no_table_has():
    model = build(SMALL)
    rows, valid = lay(texts(), "left", 7, -100)
    assert_close(model(rows, valid=valid), model(rows.clamp(min=0), valid=valid), "exact")


def test_a_text_of_padding_alone_is_pooled_to_0():
    model = build(SMALL)
    got = model(texts(), valid=torch.zeros(3, 7, dtype=torch.bool))
    want = formulas.head(torch.zeros(8).double(), model.head, formulas.relu)
    assert_close(got, want.expand(3, 3))


def test_reads_padding_treats_it_as_text():
    model = build(replace(SMALL, reads_padding=True))
    rows, valid = lay(texts(), "left", 7, 0)
    assert_close(model(rows, valid=valid), model(rows), "exact")
    assert not torch.equal(model(rows), build(SMALL)(rows, valid=valid))


# what is refused


def test_a_text_that_is_too_long_is_refused():
    with pytest.raises(ShapeError, match="8 tokens .* length=7"):
        build(SMALL)(torch.zeros(1, 8, dtype=torch.long))


def test_other_shapes_are_refused():
    model = build(SMALL)
    with pytest.raises(ShapeError, match=r"tokens has shape \[7\]"):
        model(torch.zeros(7, dtype=torch.long))
    with pytest.raises(ShapeError, match=r"valid has shape \[3, 6\]"):
        model(texts(), valid=torch.ones(3, 6, dtype=torch.bool))
    with pytest.raises(MaskError, match="valid has dtype torch.int64"):
        model(texts(), valid=torch.ones(3, 7, dtype=torch.long))
