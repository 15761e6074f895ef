"""The closed forms do what their definitions say, and are never worse than the usual starts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import pad

from suffice.convert import convert
from suffice.convert.calibration import attention_layers, collect_moments
from suffice.convert.closed_form import (
    averaged,
    latent,
    rotary_pairs,
    shared,
    sliced_keys,
    sliced_values,
)
from suffice.convert.feature_permutation import _Residual, permuted
from suffice.convert.fit import OutputRegression, output_errors
from suffice.convert.maps import build, read
from suffice.encoders import HeadRMS, Optimised
from suffice.errors import ConfigError, DataError
from suffice.mixing import Alignment
from suffice.models import LMConfig
from suffice.patterns import Causal, Full
from suffice.positions import Rope
from suffice.testing import assert_close, drawn, normal

from .layers import inputs, layer_of, moments_of

POSITIONS = {
    "none": {},
    "no-bias": {"bias": False},
    "half": {"position": Rope()},
    "interleaved": {"position": Rope(layout="interleaved"), "bias": False},
    "partial": {"position": Rope(features=2)},
    "normalised": {"norm": HeadRMS(1e-2), "position": Rope(), "bias": False},
    "grouped": {"num_heads": 8, "num_kv_heads": 4, "head_dim": 4},
}
WORDS = ("mqa", "gqa:2", "optimised", "efficient", "latent:6", "window:3+sinks:1", "mqa,window:4")


def possible():
    for name, fields in POSITIONS.items():
        for words in WORDS:
            turns = "position" in fields and words.startswith("latent")
            # more than half the columns would be taken, or heads that are none
            wide = name == "grouped" and words in ("optimised", "efficient")
            columns = name == "normalised" and words == "efficient"
            if not turns and not wide and not columns:
                yield pytest.param(fields, words, id=f"{name}-{words}")
    for words in ("optimised:2", "efficient:2", "optimised:4"):
        yield pytest.param({"num_kv_heads": 2 if words[-1] == "4" else 4}, words, id=words)
    yield pytest.param({"num_heads": 6, "num_kv_heads": 2, "head_dim": 2}, "gqa:3", id="not-nested")


@pytest.mark.parametrize(("fields", "words"), list(possible()))
def test_never_worse_than_the_usual_start_on_what_it_was_fitted_on(fields, words):
    layer, batches = layer_of(seed=1, **fields), inputs(seed=1)
    closed = convert(layer, words, calibration=batches).certificate.layers[0]
    naive = convert(layer, words, calibration=batches, naive=True)
    usual = naive.certificate.layers[0]
    assert not closed.exact
    assert not usual.exact
    assert closed.predicted <= usual.predicted * (1 + 1e-9)
    again = output_errors(layer, {"": naive.model}, batches)[""]
    assert usual.predicted == pytest.approx(again, rel=1e-4)


def test_shared_values_are_the_best_of_their_rank():
    """Eckart and Young: the error is what the singular values left out weigh."""
    layer = layer_of(bias=False)
    maps, moments = read(layer), moments_of(layer)
    found = shared(maps, layer.spec, 1, moments)
    lower = torch.linalg.cholesky(moments.second(centred=False))
    wanted = lower.T @ torch.cat(list(maps.v[:, :-1] @ maps.o), dim=1)
    got = lower.T @ torch.cat(list(found.per_query(found.v)[:, :-1] @ found.o), dim=1)
    lost = torch.linalg.svdvals(wanted)[4:].square().sum()
    assert (wanted - got).square().sum() == pytest.approx(float(lost), rel=1e-2)
    usual = averaged(maps, 1)
    worse = lower.T @ torch.cat(list(usual.per_query(usual.v)[:, :-1] @ usual.o), dim=1)
    assert (wanted - worse).square().sum() > 2 * lost


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_shared_turning_keys_are_the_leading_component_of_each_pair(layout):
    layer = layer_of(bias=False, position=Rope(layout=layout))
    maps, moments = read(layer), moments_of(layer)
    found = shared(maps, layer.spec, 1, moments)
    lower = torch.linalg.cholesky(moments.second(centred=False)).to(torch.complex128)
    for a, b in rotary_pairs(layer.spec.position, 4)[0]:
        keys = torch.complex(maps.k[:, :-1, a], maps.k[:, :-1, b])
        queries = torch.complex(maps.q[:, :-1, a], maps.q[:, :-1, b])
        power = (queries @ lower).abs().square().sum(dim=1)
        stacked = power.sqrt()[:, None] * (keys @ lower)
        lost = torch.linalg.svdvals(stacked)[1:].square().sum()
        one = torch.complex(found.k[0, :-1, a], found.k[0, :-1, b])
        new = torch.complex(found.q[:, :-1, a], found.q[:, :-1, b])
        factor = (new.conj() / queries.conj())[:, 0]
        assert (new - queries * factor.conj()[:, None]).abs().max() < 1e-9
        left = power.sqrt()[:, None] * (keys - factor[:, None] * one) @ lower
        assert left.abs().square().sum() == pytest.approx(float(lost), rel=1e-2)


def test_shared_keys_of_a_normalised_layer_are_the_mean_of_keys_of_one_size():
    layer = layer_of(norm=HeadRMS(), position=Rope())
    maps, moments = read(layer), moments_of(layer)
    found = shared(maps, layer.spec, 2, moments)
    x = torch.cat([batch.flatten(0, 1) for batch in inputs()]).double()
    keys = torch.nn.functional.pad(x, (0, 1), value=1.0) @ maps.k
    sizes = keys.square().sum(dim=2).mean(dim=1).sqrt()
    for group in range(2):
        own = slice(2 * group, 2 * group + 2)
        wanted = (maps.k[own] / sizes[own, None, None]).mean(dim=0)
        assert_close(found.k[group], wanted)
    assert torch.equal(found.q, maps.q)
    built_ = build(found, convert(layer, "gqa:2", naive=True).model.spec, like=layer)
    assert torch.equal(built_.k_norm.weight, layer.k_norm.weight)


@pytest.mark.parametrize("words", ["efficient", "super"])
def test_keys_that_are_columns_have_no_closed_form_behind_a_norm(words):
    lm = layer_of(norm=HeadRMS(), pattern=Causal())
    model = torch.nn.Sequential(lm)
    model.config = LMConfig(vocabulary_size=9, length=12, d_model=16, depth=1, mlp_width=4)
    with pytest.raises(ConfigError, match=f"{words}: HeadRMS"):
        convert(model, words, calibration=inputs())
    usual = convert(model, words, calibration=inputs(), naive=True)
    assert usual.certificate.layers[0].chosen == "dropped W_K and W_V"
    assert torch.equal(usual.model[0].q_norm.weight, lm.q_norm.weight)


def test_slices_are_regressions():
    layer = layer_of()
    maps, moments = read(layer), moments_of(layer)
    sliced = sliced_keys(sliced_values(maps, 4, moments, bias=True), layer.spec, moments)
    x = torch.cat([batch.flatten(0, 1) for batch in inputs()]).double()
    centred = x - x.mean(dim=0)
    for head in range(4):
        at = slice(4 * head, 4 * head + 4)
        values = centred @ maps.v[head, :-1] @ maps.o[head]
        fit = torch.linalg.lstsq(centred[:, at], values).solution
        assert (sliced.o[head] - fit).abs().max() < 0.02 * fit.abs().max()
        keys = torch.linalg.lstsq(centred[:, at], centred @ maps.k[head, :-1]).solution
        wanted = maps.q[head] @ keys.T
        assert (sliced.q[head] - wanted).abs().max() < 0.02 * wanted.abs().max()


def test_values_of_a_head_that_reads_all_columns_are_exact():
    """Weights sum to 1: what a head adds to the output is (x V + b) O, whatever they are."""
    layer = layer_of(num_heads=1)
    torch.nn.init.normal_(layer.v_proj.bias)
    maps = read(layer)
    sliced = sliced_values(maps, 1, moments_of(layer), bias=True)
    x = torch.nn.functional.pad(inputs()[0].double(), (0, 1), value=1.0)
    want, got = (x @ one.v[0] @ one.o[0] + one.offset for one in (maps, sliced))
    assert_close(got, want, n=16)


def test_slices_of_turning_keys_are_complex_regressions():
    layer = layer_of(bias=False, position=Rope())
    maps, moments = read(layer), moments_of(layer)
    sliced = sliced_keys(maps, layer.spec, moments)
    x = torch.cat([batch.flatten(0, 1) for batch in inputs()]).double()
    keys = torch.nn.functional.pad(x, (0, 1), value=1.0) @ maps.k
    for head in range(4):
        for a, b in rotary_pairs(layer.spec.position, 4)[0]:
            columns = torch.complex(x[:, 4 * head + a], x[:, 4 * head + b])
            wanted = torch.complex(keys[head, :, a], keys[head, :, b])
            factor = (columns.conj() @ wanted) / columns.abs().square().sum()
            before = torch.complex(maps.q[head, :, a], maps.q[head, :, b])
            after = torch.complex(sliced.q[head, :, a], sliced.q[head, :, b])
            assert (after - before * factor.conj()).abs().max() < 1e-6


def test_a_latent_of_full_width_loses_nothing():
    layer = layer_of()
    maps, moments = read(layer), moments_of(layer)
    spec = convert(layer, "latent:16").model.spec
    whole = build(latent(maps, 16, moments, bias=True), spec, like=layer, dtype=torch.float64)
    exact = layer.double()
    for batch in inputs(batches=2):
        wanted = exact(batch.double())
        assert (whole(batch.double()) - wanted).abs().max() < 1e-2 * wanted.abs().max()


def test_a_refit_is_the_least_squares_and_never_loses():
    draws = torch.Generator().manual_seed(0)
    z, y = torch.randn(60, 8, generator=draws), torch.randn(60, 16, generator=draws)
    maps = read(layer_of(num_heads=2, head_dim=4))
    sums = OutputRegression(8, 16, bias=True)
    sums.add(z[:30], y[:30])
    sums.add(z[30:], y[30:])
    found = sums.refitted(maps)
    wide = torch.nn.functional.pad(z, (0, 1), value=1.0).double()
    fit = torch.linalg.lstsq(wide, y.double()).solution
    got = torch.cat([found.o.flatten(0, 1), found.offset[None]])
    assert (got - fit).abs().max() < 1e-4
    lost = (wide @ got - y).square().sum() / y.double().square().sum()
    assert sums.error(found) == pytest.approx(float(lost.sqrt()), rel=1e-9)
    assert sums.error(found) < sums.error(maps)


@pytest.mark.parametrize("words", ["mqa", "latent:6", "linear", "gla"])
def test_padding_is_not_learnt_from(words):
    """Outputs at padding are the bias: neither its content nor how much there is matters."""
    layer = layer_of(**({} if words == "gla" else {"pattern": Full()}))
    batch = inputs(batches=1)[0]
    valid = torch.ones(4, 12, dtype=torch.bool)
    valid[0, 9:], valid[2, :5] = False, False

    class Padded(torch.nn.Module):
        def __init__(self, fill, more):
            super().__init__()
            self.layer, self.fill, self.more = layer, fill, (0, more)

        def forward(self, x):
            real = pad(valid, self.more)
            x = pad(x, (0, 0, *self.more)).masked_fill(~real[..., None], self.fill)
            return self.layer(x, valid=real)

    converted = []
    for fill, more in ((0.0, 0), (1e3, 7)):
        torch.manual_seed(0)  # gates are drawn
        model = Padded(fill, more)
        converted.append(convert(model, words, calibration=[batch], held_out=[batch]))
    few, much = converted
    made = (attention_layers(one.model)["layer"] for one in (few, much))
    for first, second in zip(*(one.parameters() for one in made), strict=True):
        assert_close(first, second, n=1 << 10)
    with torch.no_grad():
        want = Padded(0.0, 0)(batch)[valid]
        lost = few.model(batch)[valid] - want
    for one in (few, much):
        assert one.certificate.calibration_tokens == 48
        measured = one.certificate.layers[0].measured
        assert measured == pytest.approx(float(lost.norm() / want.norm()), rel=1e-4)
    own = collect_moments(Padded(0.0, 2), {"layer": layer}, [batch])  # outside of the model
    assert own["layer"].count == 40


def test_layers_that_mix_values_are_refused():
    layer = layer_of(mixing=Alignment(12))
    for naive in (True, False):
        with pytest.raises(ConfigError, match="gqa:1: the layer mixes its values by Alignment"):
            convert(layer, "mqa", calibration=inputs(), naive=naive)
    found = convert(layer, "window:3", calibration=inputs())
    assert found.certificate.layers[0].exact_up_to == 3
    assert_close(found.model.mixing.weight, layer.mixing.weight, "exact")


def test_calibration_without_numbers():
    with pytest.raises(DataError, match="the calibration holds no batch; give text or inputs"):
        convert(layer_of(), "mqa", calibration=[])
    bad = inputs()
    bad[2][0, 0, 0] = torch.inf
    with pytest.raises(DataError, match="the layer.*NaN"):
        convert(layer_of(), "mqa", calibration=bad)


SIZES = {"vocabulary_size": 19, "length": 12, "d_model": 16, "depth": 2, "mlp_width": 24}


@pytest.mark.parametrize(
    "options",
    [{}, {"norm": "rms", "activation": "swiglu", "bias": False, "tied": False}],
    ids=["gpt", "llama"],
)
def test_an_order_of_features_changes_no_logit(options):
    spec = layer_of().spec
    lm = drawn(LMConfig(**SIZES, **options).build(spec), seed=1).eval()
    order = torch.randperm(16, generator=torch.Generator().manual_seed(4))
    tokens = torch.randint(19, (3, 12), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        moved = permuted(lm, order)
        assert_close(moved(tokens), lm(tokens))
        assert_close(moved.embedding.tokens.weight, lm.embedding.tokens.weight[:, order], "exact")


@pytest.mark.parametrize("position", [{}, {"position": Rope()}, {"position": Rope(features=2)}])
@pytest.mark.parametrize("words", ["optimised", "efficient"])
def test_chosen_features_lose_less(position, words, monkeypatch):
    spec = layer_of(num_heads=4, num_kv_heads=2, **position).spec
    lm = drawn(LMConfig(**SIZES).build(spec), seed=1).eval()
    draws = torch.Generator().manual_seed(5)
    batches = [torch.randint(19, (6, 12), generator=draws) for _ in range(5)]

    def lost():
        layers = convert(lm, words, calibration=batches).certificate.layers
        return sum(one.predicted**2 for one in layers)

    chosen = lost()
    monkeypatch.setattr("suffice.convert.feature_permutation.can_permute", lambda _model: False)
    assert chosen < lost()


def test_features_stay_where_they_cannot_move():
    draws = torch.Generator().manual_seed(5)
    batches = [torch.randint(19, (6, 12), generator=draws)]
    spec = layer_of().spec
    sines = LMConfig(**SIZES, positions="sinusoidal").build(spec)
    columns = LMConfig(**SIZES).build([replace(spec, encoder=Optimised()), spec])
    for lm in (sines, columns):
        drawn(lm, seed=1).eval()
        found = convert(lm, ["keep", "optimised"], calibration=batches).model
        weight = lm.embedding.tokens.weight
        assert_close(found.embedding.tokens.weight, weight, "exact")
    moved = convert(
        drawn(LMConfig(**SIZES).build(spec), seed=1).eval(), "optimised", calibration=batches
    )
    with pytest.raises(AssertionError):
        assert_close(moved.model.embedding.tokens.weight, weight, "exact")


def test_what_chosen_features_explain_is_the_regression_on_them():
    factor, part = normal(9, 6, seed=1), normal(6, 2, seed=2)
    second = factor.T @ factor
    residual = _Residual(second, part)
    for feature in (4, 0, 3):
        residual.take(feature)
    chosen = [4, 0, 3]
    explained = second[:, chosen] @ torch.linalg.solve(second[chosen][:, chosen], second[chosen])
    assert_close(residual.power, (second - explained).diagonal().clamp(min=0.0))
    assert_close(residual.cross, (second - explained) @ part)
