"""Whole models: the plan, the certificate, and what is measured on text nothing was fitted to."""

from __future__ import annotations

import json

import pytest
import torch

from suffice import preset
from suffice.convert import convert, plan_of, plan_to_json, read_plan
from suffice.convert.sources import from_encoder
from suffice.errors import ConfigError, DataError
from suffice.layers.from_torch import from_torch
from suffice.memory import Dynamic
from suffice.models import ClassifierConfig, LMConfig, ViTConfig
from suffice.patterns import Causal, Window
from suffice.positions import Rope
from suffice.spec import AttentionSpec
from suffice.testing import assert_close, drawn

from .layers import inputs, layer_of

SIZES = {"vocabulary_size": 19, "length": 12, "d_model": 16, "depth": 2, "mlp_width": 24}


def model(seed=1, **fields):
    spec = AttentionSpec(d_model=16, num_heads=4, pattern=Causal(), **fields)
    return drawn(LMConfig(**SIZES).build(spec), seed=seed).eval()


def rows(count=3, seed=0):
    draws = torch.Generator().manual_seed(seed)
    return [torch.randint(19, (6, 12), generator=draws) for _ in range(count)]


def test_a_language_model_and_its_certificate():
    lm, told = model(), []
    before = {name: tensor.clone() for name, tensor in lm.state_dict().items()}
    found = convert(
        lm, "mqa", calibration=rows(), held_out=rows(2, seed=1), step=lambda *of: told.append(of)
    )
    for name, tensor in lm.state_dict().items():
        assert_close(tensor, before[name], "exact")
    one = found.certificate
    assert (one.kind, one.exact, one.naive, one.calibration_tokens) == (
        "approximate",
        False,
        False,
        3 * 6 * 12,
    )
    assert [layer.name for layer in one.layers] == ["blocks.0.attention", "blocks.1.attention"]
    for layer in one.layers:
        assert (layer.state_before, layer.state_after) == (32, 8)
        assert layer.parameters_before - layer.parameters_after == 2 * 12 * 17
        assert 0 < layer.predicted < 1
        assert 0 < layer.measured < 2
        assert layer.difference is None
    assert one.loss.tokens == 2 * 6 * 11
    assert one.loss.rows == 12
    assert one.loss.change == pytest.approx(one.loss.after - one.loss.before)
    assert one.loss.low < one.loss.change < one.loss.high
    tokens = torch.cat(rows(2, seed=1))
    with torch.no_grad():
        logits = found.model(tokens)[:, :-1].double().log_softmax(dim=-1)
    wanted = -logits.gather(2, tokens[:, 1:, None]).mean()
    assert one.loss.after == pytest.approx(float(wanted), rel=1e-6)
    assert {spec.kv_heads for spec in found.model.specs} == {1}
    whats = [what for what, _, _ in told]
    assert sorted(set(whats), key=whats.index) == ["reading", "fitting", "judging"]
    assert told[-1] == ("judging", 24, 24)  # rows that both models read
    data = json.loads(json.dumps(one.to_json()))
    assert data["kind"] == "approximate"
    assert data["layers"][0]["target"] == "gqa:1"


def test_one_row_has_no_interval():
    loss = convert(model(), "keep", held_out=[rows(1)[0][:1]]).certificate.loss
    assert (loss.change, loss.low, loss.high) == (0.0, None, None)


def test_each_layer_its_own():
    lm = model()
    for plan in (["keep", "mqa"], {"blocks.1.attention": "mqa"}):
        found = convert(lm, plan, calibration=rows())
        assert [layer.exact for layer in found.certificate.layers] == [True, False]
        assert found.certificate.layers[0].difference == 0.0
        first, second = found.model.blocks[0].attention, found.model.blocks[1].attention
        assert_close(first.q_proj.weight, lm.blocks[0].attention.q_proj.weight, "exact")
        assert second.spec.kv_heads == 1
    assert found.certificate.kind == "approximate"


def test_layers_are_converted_apart():
    lm = model()
    both = convert(lm, "mqa", calibration=rows()).model
    one = convert(lm, ["keep", "mqa"], calibration=rows()).model
    name = "blocks.1.attention.k_proj.weight"
    assert_close(both.state_dict()[name], one.state_dict()[name], "exact")


def test_a_converted_model_streams():
    tokens = rows(1)[0][:2]
    for words in ("latent:6", "super", "gqa:2,window:4+sinks:1"):
        made = convert(model(), words, calibration=rows()).model
        state = made.state(Dynamic())
        with torch.no_grad():
            pieces = [made(tokens[:, a:b], state=state) for a, b in ((0, 5), (5, 6), (6, 12))]
            assert_close(torch.cat(pieces, dim=1), made(tokens))


def test_states_are_what_layers_keep():
    states = {}
    for words in ("latent:6", "efficient", "super", "optimised", "input"):
        (layer, _) = convert(model(), words, calibration=rows()).certificate.layers
        states[words] = layer.state_after
    wanted = {"latent:6": 6, "efficient": 16, "super": 32, "optimised": 32, "input": 16}
    assert states == wanted
    turning = model(position=Rope())
    (layer, _) = convert(turning, "efficient", calibration=rows()).certificate.layers
    assert layer.state_after == 32


def test_a_window_is_exact_as_far_as_it_reaches():
    longer = convert(model(), "window:12").certificate
    assert longer.exact
    assert convert(model(), "window:12").model.specs[0].pattern.reach is None
    short = convert(model(), "window:11", calibration=rows()).certificate.layers[0]
    assert (short.exact, short.exact_up_to) == (False, 11)
    config = LMConfig(**SIZES, positions="none")
    endless = drawn(config.build(model(position=Rope()).specs), seed=0).eval()
    one = convert(endless, "window:12", calibration=rows()).certificate.layers[0]
    assert (one.exact, one.exact_up_to) == (False, 12)
    made = convert(endless, "window:12+sinks:0", naive=True).model
    tokens = rows(1)[0]
    with torch.no_grad():
        assert_close(made(tokens), endless(tokens))
    assert made.specs[0].pattern == Window(12) & Causal()


def test_the_usual_starts_need_no_text():
    found = convert(model(), "mqa", naive=True)
    one = found.certificate.layers[0]
    assert (found.certificate.naive, one.chosen, one.predicted) == (True, "average", None)
    own = model().blocks[0].attention.k_proj.weight.unflatten(0, (4, 4)).mean(dim=0)
    assert_close(found.model.blocks[0].attention.k_proj.weight, own)
    kept = convert(model(), "keep", naive=True).certificate
    assert kept.exact
    chosen = convert(model(), "optimised,window:4", naive=True).certificate.layers[0].chosen
    assert chosen == "dropped W_V, cut"
    assert convert(model(num_kv_heads=2), "gqa:4", naive=True).certificate.exact
    wider = convert(model(num_kv_heads=2), "gqa:4,window:4", naive=True).certificate.layers[0]
    assert (wider.exact, wider.chosen) == (False, "cut")


def test_training_or_not_is_kept():
    assert convert(model().train(), "mqa", naive=True).model.training
    found = convert(model(), "mqa", naive=True).model
    assert not any(one.training for one in found.modules())


@pytest.mark.parametrize("name", ["classifier", "vit", "encoder", "mha"])
def test_other_models(name):
    models = {
        "classifier": lambda: ClassifierConfig(**SIZES, num_classes=3).build(
            preset("standard", 16, 4)
        ),
        "vit": lambda: ViTConfig(
            image_size=6, patch_size=2, num_classes=3, d_model=16, depth=2, mlp_width=8
        ).build(preset("standard", 16, 4)),
        "encoder": lambda: from_encoder(
            torch.nn.TransformerEncoder(
                torch.nn.TransformerEncoderLayer(16, 4, 24, batch_first=True),
                2,
                enable_nested_tensor=False,
            )
        ),
        "mha": lambda: from_torch(torch.nn.MultiheadAttention(16, 4)),
    }
    made = drawn(models[name](), seed=3).eval()
    draws = torch.Generator().manual_seed(0)
    batches = {
        "classifier": rows(),
        "vit": [torch.randn(5, 1, 6, 6, generator=draws) for _ in range(3)],
    }.get(name, inputs())
    found = convert(made, "gqa:2", calibration=batches, held_out=batches[:1])
    assert found.certificate.loss is None
    assert all(layer.measured < 1 for layer in found.certificate.layers)
    assert found.model(batches[0]).shape == made(batches[0]).shape
    assert all(layer.state_before == 32 for layer in found.certificate.layers)
    length = None if name in ("encoder", "mha") else made.config.length
    if length is None:
        with pytest.raises(ConfigError, match="super fixes the longest input"):
            convert(made, "super", calibration=batches)
    else:
        aligned = convert(made, "super", calibration=batches).model
        assert {block.attention.spec.mixing.length for block in aligned.blocks} == {length}


def test_plans(tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan_to_json(["keep", "gqa:2"], score=0.1)))
    assert read_plan(file) == ["keep", "gqa:2"]
    file.write_text(json.dumps({"layers": {"blocks.1.attention": "mqa"}}))
    assert read_plan(file) == {"blocks.1.attention": "mqa"}
    with pytest.raises(ConfigError, match="unknown target 'maybe'"):
        plan_to_json(["maybe"])
    for text in ("{", "[]", '{"layers": 3}', '{"layers": [1]}', '{"layers": [], "more": 1}'):
        file.write_text(text)
        with pytest.raises(DataError, match=r"plan.json"):
            read_plan(file)
    with pytest.raises(DataError, match=r"none.json"):
        read_plan(tmp_path / "none.json")


def test_plans_that_do_not_fit():
    with pytest.raises(ConfigError, match="the plan is for 1 layers and the model has 2"):
        plan_of(model(), ["mqa"])
    with pytest.raises(ConfigError, match=r"the plan names 'blocks.7', .* there are blocks.0.att"):
        plan_of(model(), {"blocks.7": "mqa"})
    with pytest.raises(ConfigError, match="Linear holds no attention layer of this library"):
        plan_of(torch.nn.Linear(2, 2), "mqa")


def test_a_layer_that_cannot_become_the_target_is_named():
    with pytest.raises(ConfigError, match=r"blocks.0.attention: num_kv_heads=3 does not divide"):
        convert(model(), "gqa:3", calibration=rows())
    with pytest.raises(ConfigError, match=r"blocks.1.attention cannot become gqa:1 exactly and"):
        convert(model(), ["keep", "mqa"])
    wide = layer_of(head_dim=8)
    with pytest.raises(ConfigError, match="Optimised takes values as column slices"):
        convert(wide, "optimised", calibration=inputs())
