"""Quantised models: which maps are packed, how weights are rounded, and what is refused."""

from __future__ import annotations

import copy
import json
import sys
from itertools import product

import pytest
import torch

from suffice import AttentionSpec, preset
from suffice.encoders import MLA
from suffice.errors import ConfigError, DataError
from suffice.layers.packed import Packed, PackedEmbedding, PackedLinear
from suffice.models import (
    ClassifierConfig,
    LMConfig,
    TranslatorConfig,
    ViTConfig,
)
from suffice.ops.native import library
from suffice.ops.native.matrix import in_panels, numbers_of
from suffice.patterns import Causal
from suffice.positions import Rope
from suffice.quantise import quantise, unpack
from suffice.quantise.quantise import SCALES, best_scales, codes_of, gptq, round_to_nearest
from suffice.quantise.report import rows_of
from suffice.testing import assert_close, drawn
from suffice.text import Characters

SIZES = {"vocabulary_size": 30, "length": 16, "d_model": 32, "depth": 2, "mlp_width": 64}
MAPS = ("q_proj", "k_proj", "v_proj", "o_proj")


def small(mechanism="standard", **changes):
    spec = preset(mechanism, 32, 4, causal=True)
    return drawn(LMConfig(**SIZES | changes).build(spec), seed=3).eval()


def text(rows=6, seed=0):
    return torch.randint(30, (rows, 17), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bits", [16, 8, 4])
def test_every_map_of_a_language_model(bits, tied):
    lm = small(tied=tied, activation="swiglu", norm="rms")
    before, state = lm(text()[:, :-1]), copy.deepcopy(lm.state_dict())
    report = quantise(lm, bits, judged=text())
    packed = {name for name, m in lm.named_modules() if isinstance(m, Packed)}
    maps = {f"blocks.{b}.attention.{m}" for b in (0, 1) for m in MAPS}
    maps |= {f"blocks.{b}.mlp.{m}" for b in (0, 1) for m in ("gate", "up", "down")}
    assert packed == maps | {"embedding.tokens"} | (set() if tied else {"head"})
    assert {n.name for n in report.layers if not n.skipped} == packed
    assert [(n.name, n.skipped) for n in report.layers if n.skipped] == [
        ("embedding.positions", "positions are added to tokens; a few rows")
    ]
    assert isinstance(lm.embedding.tokens, PackedEmbedding)
    gap = (lm(text()[:, :-1]) - before).norm() / before.norm()
    assert gap < {16: 1e-3, 8: 3e-2, 4: 0.4}[bits]
    kernel = library.instructions() if library.available() else "torch"
    for layer in report.layers:
        if not layer.skipped:
            module = lm.get_submodule(layer.name)
            assert (layer.scheme, layer.kernel) == (str(module.scheme), kernel)
            weight = state[f"{layer.name}.weight"]
            assert layer.bytes_after == module.nbytes
            assert layer.bytes_before >= weight.nbytes
            wrong = (module.dequantised() - weight).norm() / weight.norm()
            assert layer.error == pytest.approx(float(wrong), rel=1e-3)
    assert report.bytes_before == sum(t.nbytes for t in state.values())
    assert report.bytes_after == sum(t.nbytes for t in lm.state_dict().values())
    assert report.change.tokens == 6 * 16
    assert abs(report.change.increase) < {16: 1e-2, 8: 0.1, 4: 3.0}[bits]
    json.dumps(report.to_json(), allow_nan=False)


@torch.no_grad()
def test_the_change_is_that_of_the_predictions():
    lm, tokens = small(), text()
    was = lm(tokens[:, :-1]).double().log_softmax(-1)
    report = quantise(lm, 4, judged=tokens)
    now = lm(tokens[:, :-1]).double().log_softmax(-1)
    wants = tokens[:, 1:, None]
    for field, logs in (("perplexity_before", was), ("perplexity_after", now)):
        want = float((-logs.gather(-1, wants).mean()).exp())
        assert getattr(report.change, field) == pytest.approx(want, rel=1e-5)
    divergence = float((was.exp() * (was - now)).sum(-1).mean())
    assert report.change.divergence == pytest.approx(divergence, rel=1e-4)
    assert report.calibration_tokens == 0


def test_the_report_counts_the_tokens_that_were_read():
    lm, rows = small(), text(5)
    longer = torch.cat([rows, rows, rows], dim=1)
    read = min(longer.shape[1], lm.config.length)
    assert read < longer.shape[1]
    assert quantise(lm, 4, calibration=longer, judged=rows).calibration_tokens == 5 * read


@pytest.mark.parametrize("tied", [True, False])
def test_calibration_keeps_the_outputs_of_maps(tied):
    steps = []
    base = small(tied=tied)
    report = quantise(copy.deepcopy(base), 4, calibration=text(40), step=lambda *n: steps.append(n))
    assert report.calibration_tokens == 40 * 16  # what the model reads of rows of 17
    free = quantise(copy.deepcopy(base), 4, judged=text(40))
    assert report.change.divergence < free.change.divergence
    assert {what for what, _, _ in steps} == {"reading text", "rounding", "comparing"}
    assert all(done <= total for _, done, total in steps)
    assert steps[-1][1] == steps[-1][2] == 40
    errors = {n.name: n.error for n in report.layers if not n.skipped}
    assert all(0.0 < error < 0.3 for error in errors.values())


def test_maps_with_the_same_input_share_statistics():
    from suffice.quantise.quantise import calibrate

    lm, names = small(), [f"blocks.0.attention.{m}" for m in MAPS]
    inputs = {name: [] for name in names}
    hooks = [
        lm.get_submodule(n).register_forward_pre_hook(lambda _m, x, n=n: inputs[n].append(x[0]))
        for n in names
    ]
    features = []
    hooks.append(lm.norm.register_forward_hook(lambda *call: features.append(call[2])))
    rows = text(20)[:, :-1]  # more than are computed at once
    stats = calibrate(lm, [*names, "embedding.tokens"], rows, lambda *_: None)
    for hook in hooks:
        hook.remove()
    assert set(stats.grams) == {names[0], names[3], "embedding.tokens"}
    for name in names:
        x = torch.cat(inputs[name]).double().flatten(0, 1)
        assert len(x) == 20 * 16
        assert_close(stats[name], x.t() @ x, n=320)
    x = torch.cat(features).double().flatten(0, 1)
    assert_close(stats["embedding.tokens"], x.t() @ x, n=320)
    assert stats["blocks.1.mlp.up"] is None


def test_other_models_are_packed_too():
    spec = preset("super_attention", 32, 4, length=16)
    models = {
        "classifier": ClassifierConfig(
            vocabulary_size=30, length=16, d_model=32, depth=1, mlp_width=64, num_classes=3
        ).build(spec),
        "vit": ViTConfig(
            image_size=8, patch_size=4, channels=1, d_model=32, depth=1, mlp_width=64, num_classes=3
        ).build(preset("standard", 32, 4)),
        "translator": TranslatorConfig(
            source_vocabulary_size=30,
            target_vocabulary_size=30,
            length=16,
            d_model=32,
            encoder_depth=1,
            decoder_depth=1,
            mlp_width=64,
        ).build(
            preset("standard", 32, 4),
            preset("standard", 32, 4, causal=True),
            preset("standard", 32, 4),
        ),
    }
    arguments = {
        "classifier": (text(2)[:, :16],),
        "vit": (torch.randn(2, 1, 8, 8),),
        "translator": (text(2)[:, :9], text(2)[:, :7]),
    }
    for name, model in models.items():
        model.eval()
        with torch.no_grad():
            before = model(*arguments[name])
            report = quantise(model, 8)
            gap = (model(*arguments[name]) - before).norm() / before.norm()
        assert gap < 0.05, name
        assert report.change is None
        if name == "classifier":
            reasons = {n.name: n.skipped for n in report.layers if n.skipped}
            assert reasons["blocks.0.attention.mixing"].endswith("is not a linear map of features")


@torch.no_grad()
def test_a_packed_latent_attention_streams():
    """Its decoding absorbs a plain weight into the queries, which a packed map does not have."""
    spec = AttentionSpec(
        d_model=32,
        num_heads=4,
        pattern=Causal(),
        encoder=MLA(rank=8, rotary_dim=4),
        position=Rope(),
    )
    lm = drawn(LMConfig(**SIZES | {"positions": "none"}).build(spec), seed=3).eval()
    quantise(lm, 16)
    tokens, state = text(2)[:, :16], lm.state()
    steps = [lm(column, state=state) for column in tokens.split(1, dim=1)]
    assert_close(torch.cat(steps, dim=1), lm(tokens), n=64)


def test_skipped_modules_do_not_change():
    lm = small(tied=False)
    report = quantise(lm, 4, skip=("head", "blocks.0.*"))
    assert not isinstance(lm.head, Packed)
    assert isinstance(lm.blocks[1].mlp.up, PackedLinear)
    excluded = [n.name for n in report.layers if n.skipped == "as asked"]
    assert len(excluded) == 1 + 6
    assert "head" in excluded


def test_maps_that_do_not_fit_are_skipped_with_a_reason():
    lm = small(mlp_width=36)
    report = quantise(lm, 4)
    reasons = {n.name: n.skipped for n in report.layers if n.skipped}
    assert reasons["blocks.0.mlp.down"] == "36 inputs: 4 bits need a multiple of 8"
    assert not isinstance(lm.blocks[0].mlp.down, Packed)
    lm = small()
    lm.blocks[0].mlp.up.weight.data[0, 0] = 1e38
    for bits in (16, 8):
        twin = copy.deepcopy(lm)
        reasons = {n.name: n.skipped for n in quantise(twin, bits).layers if n.skipped}
        assert reasons["blocks.0.mlp.up"] == "weights up to 1e+38 exceed half precision"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_models_of_another_precision_are_judged_too(dtype):
    lm = small("efficient").to(dtype)
    wanted = copy.deepcopy(lm).float()
    report = quantise(lm, 4, calibration=text()[:, :16])
    assert report.change == quantise(wanted, 4, calibration=text()[:, :16]).change
    assert_close(lm(text()[:, :16]), wanted(text()[:, :16]), "exact")


def test_what_is_not_packed_becomes_float32():
    lm = small().to(torch.bfloat16)
    report = quantise(lm, 8)
    assert {p.dtype for p in lm.parameters()} == {torch.float32}
    assert lm(text()[:, :-1]).dtype is torch.float32
    skipped = [n for n in report.layers if n.skipped][0]
    assert (skipped.scheme, skipped.bytes_after) == ("bfloat16", 2 * skipped.bytes_before)


def test_the_training_mode_is_restored():
    lm = small().train()
    quantise(lm, 8, calibration=text())
    assert lm.training


def test_a_refusal_leaves_the_model_unchanged():
    lm = small()
    state = copy.deepcopy(lm.state_dict())
    with pytest.raises(ConfigError, match="group=24"):
        quantise(lm, 8, 24)
    with pytest.raises(ConfigError, match="bits=16 with group=32"):
        quantise(lm, 16, 32)
    with pytest.raises(ConfigError, match="bits=5: give 16, 8 or 4"):
        quantise(lm, 5, 32)
    with pytest.raises(ConfigError, match="skip='heads'"):
        quantise(lm, skip=("heads",))
    with pytest.raises(ConfigError, match=r"give rows of two tokens"):
        quantise(lm, judged=text()[:, :1])
    lm.blocks[1].mlp.up.weight.data[0, 0] = torch.nan
    with pytest.raises(ConfigError, match="1.mlp.up"):
        quantise(lm)
    lm.blocks[1].mlp.up.weight.data[0, 0] = state["blocks.1.mlp.up.weight"][0, 0]
    for name, tensor in lm.state_dict().items():
        assert_close(tensor, state[name], "exact")
    quantise(lm)
    with pytest.raises(ConfigError, match="embedding.tokens"):
        quantise(lm)
    unpack(lm)
    quantise(lm, 4)
    other = torch.nn.Sequential(torch.nn.Linear(8, 8))
    with pytest.raises(ConfigError, match="Sequential is not a language"):
        quantise(other, calibration=text())
    with pytest.raises(ConfigError, match=r"can be packed \(it has none\)"):
        quantise(torch.nn.ReLU())


def test_an_interrupted_comparison_leaves_the_model_unchanged(monkeypatch):
    lm, state = small(), None
    state = copy.deepcopy(lm.state_dict())

    def stop(what, _done, _total):
        if what == "comparing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantise(lm, 4, judged=text(), step=stop)
    assert lm.state_dict().keys() == state.keys()


def test_rows_of_text():
    tokenizer = Characters("abc")
    rows = rows_of(["abc", "abcab", "c" * 99], tokenizer, length=4, tokens=8)
    ends = [] if tokenizer.end is None else [tokenizer.end]
    ids = [*tokenizer.encode("abc"), *ends, *tokenizer.encode("abcab"), *ends]
    assert rows.flatten().tolist() == ids[:8]
    assert rows_of(["abcab"], tokenizer, length=99, tokens=500).shape == (1, 5 + len(ends))
    with pytest.raises(DataError, match="the text holds 1 tokens"):
        rows_of(["a"], tokenizer, length=4, tokens=8)


def nearest(weight, bits, group):
    levels = 1 << (bits - 1)
    parts = weight.view(len(weight), -1, group)
    scales = (parts.abs().amax(dim=-1) / (levels - 1)).half()
    return codes_of(parts, scales[..., None], bits).flatten(1), scales


def error_of(weight, rounding, bits, gram=None):
    wrong = numbers_of(in_panels(*rounding, bits)).double() - weight
    gram = torch.eye(weight.shape[1]).double() if gram is None else gram
    return float(((wrong @ gram) * wrong).sum())


def correlated(inputs, samples=400):
    x = torch.randn(samples, inputs) @ torch.randn(inputs, inputs)
    return (x.t() @ x).double()


@pytest.mark.parametrize("bits", [8, 4])
def test_errors_are_at_most_half_a_step(bits):
    weight = torch.randn(20, 64)
    codes, scales = nearest(weight, bits, 32)
    wrong = numbers_of(in_panels(codes, scales, bits)) - weight
    steps = scales.float().repeat_interleave(32, dim=1)
    assert bool((wrong.abs() <= (0.5 + 127 * 2**-11) * steps).all())
    assert_close(round_to_nearest(weight, 8, 32)[0], nearest(weight, 8, 32)[0], "exact")


def test_sought_scales_lose_less():
    weight = torch.randn(40, 128)
    plain = error_of(weight, nearest(weight, 4, 32), 4)
    assert error_of(weight, round_to_nearest(weight, 4, 32), 4) < 0.8 * plain


def test_important_inputs_lose_less():
    weight, counts = torch.randn(40, 128), torch.ones(128)
    counts[::7] = 100.0
    plain, weighed = round_to_nearest(weight, 4, 32), round_to_nearest(weight, 4, 32, counts)
    gram = counts.double().diag()
    assert error_of(weight, weighed, 4, gram) < 0.8 * error_of(weight, plain, 4, gram)


def test_levels_that_fit_are_kept():
    weight = torch.tensor([[-8.0, 7.0, 3.0, 0.0], [8.0, -7.0, 1.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    weight = torch.cat([weight, weight], dim=1)
    for codes, scales in (
        round_to_nearest(weight, 4, 8),
        gptq(weight, 4, 8, torch.eye(8).double()),
    ):
        assert_close(numbers_of(in_panels(codes, scales, 4)), weight, "exact")


def test_rows_are_rounded_alone(monkeypatch):
    weight = torch.randn(9, 64)
    at_once = round_to_nearest(weight, 4, 32)
    monkeypatch.setattr(sys.modules["suffice.quantise.quantise"], "ROUNDING_BATCH", 100)
    for got, want in zip(round_to_nearest(weight, 4, 32), at_once, strict=True):
        assert_close(got, want, "exact")


def gptq_by_definition(weight, group, gram):
    """Round column by column; the others take on what keeps the outputs, by least squares."""
    gram = gram / gram.diagonal().mean() + 0.01 * torch.eye(len(gram))
    inverses = [torch.linalg.inv(gram[i:, i:]) for i in range(len(gram))]
    left, codes, scales = weight.double().clone(), [], []
    for i, inverse in enumerate(inverses):
        if i % group == 0:
            of_group = inverses[i : i + group]
            importance = torch.stack([1 / one[0, 0] for one in of_group])
            scales.append(best_scales(left[:, i : i + group], 4, importance))
        codes.append(codes_of(left[:, i], scales[-1], 4))
        wrong = left[:, i] - (codes[-1] - 8) * scales[-1].double()
        left[:, i + 1 :] -= (wrong / inverse[0, 0])[:, None] * inverse[0, 1:]
    return torch.stack(codes, dim=1), torch.stack(scales, dim=1)


@pytest.mark.parametrize("group", [8, 16, 48])
def test_gptq_is_its_definition(group):
    weight, gram = torch.randn(5, 48), correlated(48)
    got, want = gptq(weight, 4, group, gram), gptq_by_definition(weight, group, gram)
    assert_close(got[1], want[1], "exact")
    assert_close(got[0], want[0], "exact")


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("weighed", [False, True])
def test_the_scale_of_a_group_has_the_least_error_of_those_tried(bits, weighed):
    weight = torch.randn(7, 3, 8)
    importance = torch.rand(3, 8) if weighed else torch.ones(3, 8)
    got = best_scales(weight, bits, importance if weighed else None)
    top = 2 ** (bits - 1)

    def error(group, scale, weights):
        steps = (group / scale).round().clamp(-top, top - 1)
        return float(((steps * scale - group).square() * weights).sum())

    for row, c in product(range(7), range(3)):
        group = weight[row, c]
        most = group[group.abs().argmax()]
        ranges = [most.abs() / (top - 1)] if bits == 8 else [most / (top - 1), most / -top]
        tried = [(full * share).half().float() for full in ranges for share in SCALES[bits]]
        least = min(error(group, scale, importance[c]) for scale in tried)
        assert error(group, got[row, c].float(), importance[c]) == pytest.approx(least, rel=1e-4)
        assert any(got[row, c] == scale.half() for scale in tried)


def test_carried_errors_keep_what_the_map_makes_of_inputs():
    weight, gram = torch.randn(40, 128), correlated(128)
    plain = error_of(weight, round_to_nearest(weight, 4, 32), 4, gram)
    assert error_of(weight, gptq(weight, 4, 32, gram), 4, gram) < 0.5 * plain


def test_inputs_that_say_nothing_leave_plain_rounding():
    weight = torch.randn(20, 64)
    want = round_to_nearest(weight, 4, 32)
    for gram in (torch.zeros(64, 64), 3 * torch.eye(64)):
        got = gptq(weight, 4, 32, gram.double())
        for one, other in zip(got, want, strict=True):
            assert_close(one, other, "exact")
    one_sided = torch.zeros(64, 64).double()
    one_sided[0, 0] = 1.0
    assert error_of(weight, gptq(weight, 4, 32, one_sided), 4) < 2 * error_of(weight, want, 4)


def test_rows_that_were_compared_are_counted_up_to_the_last(monkeypatch):
    monkeypatch.setattr("suffice.quantise.report.ROWS", 4)
    steps = []
    quantise(small(), 4, judged=text(10), step=lambda *n: steps.append(n))
    assert [n[1:] for n in steps if n[0] == "comparing"] == [(4, 10), (8, 10), (10, 10)]
