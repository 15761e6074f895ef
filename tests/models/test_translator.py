from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from suffice import AttentionSpec, preset
from suffice.errors import MaskError, ShapeError
from suffice.models import TranslatorConfig
from suffice.patterns import Causal
from suffice.presets import takes_length
from suffice.testing import assert_close, drawn, padded

from . import formulas

D, HEADS, S, T = 8, 2, 7, 6
SMALL = TranslatorConfig(
    source_vocabulary_size=17,
    target_vocabulary_size=13,
    length=9,
    d_model=D,
    mlp_width=10,
    eps=1e-3,
)
PAPER = ("standard", "optimised", "efficient", "super_attention")


def specs_of(mechanism, length=9):
    options = {"length": length} if takes_length(mechanism) else {}
    both = preset(mechanism, D, HEADS, **options)
    return both, preset(mechanism, D, HEADS, causal=True, **options), both


def build(mechanism="standard", **changes):
    model = replace(SMALL, **changes).build(*specs_of(mechanism))
    return drawn(model, seed=1).double().eval()


def texts(batch=3):
    generator = torch.Generator().manual_seed(6)
    source = torch.stack([torch.randperm(17, generator=generator)[:S] for _ in range(batch)])
    target = torch.stack([torch.randperm(13, generator=generator)[:T] for _ in range(batch)])
    return source, target


# the model, by hand


def attention(x, source, layer, causal):
    """Standard attention of x [T, M] to a source [S, M], position by position."""
    width = D // HEADS
    q = formulas.linear(x, layer.q_proj)
    k, v = formulas.linear(source, layer.k_proj), formulas.linear(source, layer.v_proj)
    rows = []
    for t in range(len(x)):
        visible = slice(0, t + 1) if causal else slice(None)
        heads = []
        for head in range(HEADS):
            columns = slice(head * width, (head + 1) * width)
            powers = torch.exp(k[visible, columns] @ q[t, columns] / width**0.5)
            heads.append(powers / powers.sum() @ v[visible, columns])
        rows.append(torch.cat(heads))
    return formulas.linear(torch.stack(rows), layer.o_proj)


def embedded(tokens, table, kind):
    x = table.tokens.weight[tokens]
    if kind == "learned":
        return x + table.positions.weight[: len(tokens)]
    steps = torch.arange(len(tokens)).double()[:, None]
    angles = steps / 10_000 ** (2 * (torch.arange(D) // 2).double() / D)
    waves = torch.where(torch.arange(D) % 2 == 0, angles.sin(), angles.cos())
    return x + waves if kind == "sinusoidal" else x


def halves(x, block, activation, *parts):
    """A residual and a norm around each (norm, function), the MLP last."""
    mlp = (block.mlp_norm, lambda x: formulas.linear(
        activation(formulas.linear(x, block.mlp.up)), block.mlp.down
    ))  # fmt: skip
    for norm, function in (*parts, mlp):
        if block.norm == "pre":
            x = x + function(formulas.norm(x, norm))
        else:
            x = formulas.norm(x + function(x), norm)
    return x


def by_hand(model, source, target):
    config = model.config
    activation = {"relu": formulas.relu, "gelu": formulas.gelu}[config.activation]
    last = config.norm == "pre"
    m = embedded(source, model.source, config.positions)
    for b in model.encoder:
        self_attention = (
            b.attention_norm,
            lambda x, b=b: attention(x, x, b.attention, causal=False),
        )
        m = halves(m, b, activation, self_attention)
    m = formulas.norm(m, model.encoder_norm) if last else m
    x = embedded(target, model.target, config.positions)
    for b in model.decoder:
        self_attention = (
            b.attention_norm,
            lambda x, b=b: attention(x, x, b.attention, causal=True),
        )
        other = (b.cross_norm, lambda x, b=b, m=m: attention(x, m, b.cross, causal=False))
        x = halves(x, b, activation, self_attention, other)
    x = formulas.norm(x, model.decoder_norm) if last else x
    return formulas.linear(x, model.head)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_forward_is_the_formula(norm, positions):
    activation = "gelu" if norm == "pre" else "relu"
    model = build(norm=norm, positions=positions, activation=activation, encoder_depth=2)
    source, target = texts()
    want = [by_hand(model, s, t) for s, t in zip(source, target, strict=True)]
    assert_close(model(source, target), torch.stack(want))


def test_the_source_is_read_once():
    model = build()
    source, target = texts()
    encoded = model.encode(source)
    assert encoded.shape == (3, S, D)
    assert_close(model.decode(target, encoded), model(source, target))
    assert_close(model.decode(target[:, :2], encoded), model(source, target)[:, :2])


# no look-ahead, padding, batches


@pytest.mark.parametrize("mechanism", PAPER)
def test_no_gradient_comes_from_the_future(mechanism):
    model = build(mechanism)
    source, target = texts(1)
    logits = model(source, target)
    tables = (model.target.tokens.weight, model.source.tokens.weight)
    for t in range(T):
        to_target, to_source = torch.autograd.grad(
            logits[0, t].square().sum(), tables, retain_graph=True
        )
        read = to_target[target[0]].abs().sum(dim=1)
        assert (read[t + 1 :] == 0).all()
        assert read[t] > 0
        assert (to_source[source[0]].abs().sum(dim=1) > 0).all()


@pytest.mark.parametrize("mechanism", [*PAPER, "linformer"])
@pytest.mark.parametrize("side", ["left", "right", "inside"])
def test_padding_changes_nothing(side, mechanism):
    """On both sides, whatever stands there, whatever the width."""
    if mechanism == "linformer":
        reads = preset("linformer", D, HEADS, length=9)
        built = SMALL.build(reads, specs_of("standard")[1], reads)
        model = drawn(built, seed=1).double().eval()
    else:
        model = build(mechanism)
    source, target = texts()
    s_valid, t_valid = padded(3, S, side), padded(3, T, side, seed=3)
    got = model(source, target, s_valid, t_valid)
    for junk in (0, -100, 10**6):
        filled = source.masked_fill(~s_valid, junk), target.masked_fill(~t_valid, junk)
        again = model(*filled, source_valid=s_valid, target_valid=t_valid)
        assert_close(again[t_valid], got[t_valid], "exact")
    for row in range(3):
        alone = model(source[row, s_valid[row]][None], target[row, t_valid[row]][None])
        assert_close(got[row, t_valid[row]], alone[0])
    wide, real = F.pad(source, (2, 0), value=5), F.pad(s_valid, (2, 0), value=False)
    assert_close(model(wide, target, real, t_valid)[t_valid], got[t_valid])


def test_a_source_of_padding_alone_gives_finite_logits():
    source, target = texts()
    none = torch.zeros(3, S, dtype=torch.bool)
    assert torch.isfinite(build()(source, target, none)).all()


# how it is built


@pytest.mark.parametrize(
    ("mechanism", "layer"),
    [("standard", 4_198_400), ("optimised", 3_148_800), ("efficient", 2_099_200)],
)
def test_the_papers_sizes(mechanism, layer):
    config = TranslatorConfig(
        source_vocabulary_size=23_000,
        target_vocabulary_size=23_000,
        length=20,
        d_model=1024,
        mlp_width=2048,
    )
    both = preset(mechanism, 1024, 4)
    model = config.build(both, preset(mechanism, 1024, 4, causal=True), both, device="meta")
    assert all(p.is_meta for p in model.parameters())
    attentions = [m for m in model.modules() if type(m).__name__ == "Attention"]
    assert [sum(p.numel() for p in a.parameters()) for a in attentions] == [layer] * 5
    words, head = 2 * (23_000 + 20) * 1024, 23_000 * 1025
    mlps, norms = 3 * (2 * 1024 * 2048 + 1024 + 2048), 8 * 2 * 1024
    assert sum(p.numel() for p in model.parameters()) == words + head + mlps + norms + 5 * layer


def test_a_model_starts_as_keras_does():
    config = replace(SMALL, source_vocabulary_size=500, target_vocabulary_size=400, d_model=16)
    spec = AttentionSpec(d_model=16, num_heads=2)
    model = config.build(spec, replace(spec, pattern=Causal()), spec)
    for table in (model.source, model.target):
        for weight in (table.tokens.weight, table.positions.weight):
            assert 0.048 < weight.abs().max().item() <= 0.05
    bound = (6 / 416) ** 0.5
    assert 0.98 * bound < model.head.weight.abs().max().item() <= bound
    assert (model.head.bias == 0).all()


def test_dropout_is_where_the_config_says():
    model = replace(SMALL, dropout=0.1, head_dropout=0.5).build(*specs_of("standard"))
    drops = {name: m.p for name, m in model.named_modules() if type(m).__name__ == "Dropout"}
    for block in ("encoder.0.", "decoder.0.", "decoder.1."):
        assert drops.pop(f"{block}dropout") == drops.pop(f"{block}mlp.dropout") == 0.1
        assert drops.pop(f"{block}mlp.inner_dropout") == 0.0
    assert drops.pop("head_dropout") == 0.5
    assert set(drops.values()) == {0.0}
    source, target = texts()
    assert not torch.equal(model(source, target), model(source, target))


# what is refused


def test_texts_of_wrong_shapes_are_refused():
    model, (source, target) = build(), texts()
    with pytest.raises(ShapeError, match="rows of 14 tokens"):
        model(torch.cat([source, source], dim=1), target)
    with pytest.raises(ShapeError, match=r"source has shape \[7\]"):
        model(source[0], target)
    with pytest.raises(ShapeError, match=r"target has shape \[6\]"):
        model(source, target[0])
    with pytest.raises(ShapeError, match=r"source has shape \[2, 7, 8\]"):
        model(source[:2], target)
    with pytest.raises(ShapeError, match=r"valid has shape .* One entry for each of source"):
        model(source, target, torch.ones(3, T, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"valid has shape .* One entry for each of target"):
        model(source, target, None, torch.ones(3, S, dtype=torch.bool))
    with pytest.raises(MaskError, match="valid has dtype"):
        model(source, target, torch.ones(3, S))
