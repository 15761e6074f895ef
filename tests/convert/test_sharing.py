"""Neighbouring layers that read one cache: exact where it can be, near where it cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suffice import Attention, AttentionSpec
from suffice.convert import convert
from suffice.convert.exact import changes
from suffice.convert.fit import CLOSED_FORM
from suffice.convert.maps import read
from suffice.convert.sharing import (
    AVERAGE,
    FIRST,
    SharingGroup,
    _candidates,
    _joint_moments,
    fit_groups,
    groups_of,
)
from suffice.convert.target import plan_of
from suffice.encoders import Efficient, HeadRMS, Latent, Optimised
from suffice.errors import ConfigError
from suffice.layers.inputs import SharedKV
from suffice.mixing import BandedAlignment
from suffice.models import ClassifierConfig, LMConfig, TranslatorConfig, ViTConfig, folder
from suffice.patterns import Causal, Full
from suffice.positions import Rope
from suffice.testing import assert_close, drawn, normal

SIZES = {"vocabulary_size": 19, "length": 12, "d_model": 16, "depth": 4, "mlp_width": 24}
SPEC = AttentionSpec(d_model=16, num_heads=4, num_kv_heads=2, pattern=Causal())
TURNING = replace(SPEC, position=Rope(50.0))


def model(spec=SPEC, *, seed=1, **sizes):
    return drawn(LMConfig(**{**SIZES, **sizes}).build(spec), seed=seed).eval()


def rows(count=3, seed=0):
    draws = torch.Generator().manual_seed(seed)
    return [torch.randint(19, (6, 12), generator=draws) for _ in range(count)]


def twins(spec):
    """Two layers on one input, whose keys and values are one another's up to a map of each head."""
    lm = model(spec, depth=2).double()
    first, second = lm.blocks
    with torch.no_grad():
        first.attention.o_proj.weight.zero_()  # the second block reads what the first one reads
        first.mlp.down.weight.zero_()
        for linear in (first.attention.o_proj, first.mlp.down):
            linear.bias.zero_()
        second.attention_norm.load_state_dict(first.attention_norm.state_dict())
        width = spec.head_width
        for part in ("k_proj", "v_proj"):
            maker, reader = (getattr(block.attention, part) for block in lm.blocks)
            reader.bias.zero_()
            maker.bias.zero_()
            for head in range(spec.kv_heads):
                here = slice(head * width, (head + 1) * width)
                matrix = normal(width, width, seed=head)
                if part == "k_proj" and spec.position.rotates:  # a complex number for each pair
                    half = width // 2
                    real, imaginary = normal(2, half, seed=head)
                    matrix = torch.zeros(width, width).double()
                    for pair in range(half):
                        matrix[pair, pair] = matrix[pair + half, pair + half] = real[pair]
                        matrix[pair + half, pair] = imaginary[pair]
                        matrix[pair, pair + half] = -imaginary[pair]
                reader.weight[here] = matrix @ maker.weight[here]
    return lm


@pytest.mark.parametrize("spec", [SPEC, TURNING], ids=["learned", "rotary"])
def test_keys_that_the_makers_explain_are_shared_exactly(spec):
    lm = twins(replace(spec, head_dim=4))
    found = convert(lm, ["keep", "share:2"], calibration=rows(8), held_out=rows(2, seed=1))
    assert [spec.shares for spec in found.model.specs] == [None, 0]
    tokens = torch.cat(rows(2, seed=1))
    with torch.no_grad():
        want = lm(tokens)
        assert (found.model(tokens) - want).abs().max() <= 2e-3 * want.abs().max()
    naive = convert(lm, ["keep", "share:2"], held_out=rows(2, seed=1), naive=True)
    assert abs(naive.certificate.loss.change) > 20 * abs(found.certificate.loss.change)
    assert naive.certificate.layers[1].chosen == FIRST


class Padded(torch.nn.Module):
    """Two layers of rows whose last three tokens are padding with any content."""

    def __init__(self, fill):
        super().__init__()
        self.first, self.second = (
            drawn(Attention(replace(SPEC, num_kv_heads=None)), seed=seed) for seed in (1, 2)
        )
        self.fill = fill

    def forward(self, x):
        valid = torch.ones(x.shape[:2], dtype=torch.bool)
        valid[:, -3:] = False
        shared, padding = SharedKV(), ~valid[..., None]
        for layer in (self.first, self.second):
            x = x.masked_fill(padding, self.fill)
            x = x + layer(x, valid=valid, shared=shared)
        return x


@pytest.mark.parametrize("target", ["mqa", "gqa:2", "latent:8", "optimised", "efficient"])
def test_no_map_is_fitted_to_padding(target):
    batches = list(normal(3, 6, 12, 16, seed=0).float())
    zeros, large = (
        convert(Padded(fill), target, calibration=batches, held_out=batches[:1])
        for fill in (0.0, 50.0)
    )
    for name, tensor in zeros.model.state_dict().items():
        assert_close(large.model.state_dict()[name], tensor, n=64)


@torch.no_grad()
def test_no_shared_map_is_fitted_to_padding():
    groups = [SharingGroup(maker="first", readers=("second",), free=True)]
    batches = list(normal(3, 6, 12, 16, seed=0).float())
    zeros, large = (
        _joint_moments(Padded(fill), groups, batches, lambda _done: None) for fill in (0.0, 50.0)
    )
    for name in ("first", "second"):
        assert_close(large[name], zeros[name], n=64)
        assert zeros[name][-1, -1] == 1.0


def test_a_model_and_its_certificate(tmp_path):
    lm = model()
    found = convert(lm, "share:2", calibration=rows(), held_out=rows(2, seed=1))
    assert [spec.shares for spec in found.model.specs] == [None, 0, None, 2]
    assert [spec.shares for spec in lm.specs] == [None] * 4
    one = found.certificate
    assert [layer.state_after for layer in one.layers] == [16, 0, 16, 0]
    assert [layer.state_before for layer in one.layers] == [16] * 4
    for number, layer in enumerate(one.layers):
        spec = found.model.specs[number]
        assert layer.parameters_after == spec.cost(1).parameters
        if number % 2:
            assert layer.chosen in (FIRST, CLOSED_FORM, AVERAGE)
            assert 0 < layer.predicted < 1
            assert 0 < layer.measured < 2
    assert one.loss.rows == 12
    folder.save(tmp_path / "run", found.model)
    stored = folder.read(tmp_path / "run").model
    with torch.no_grad():
        assert torch.equal(stored(rows()[0]), found.model(rows()[0]))


@pytest.mark.parametrize("spec", [SPEC, TURNING, replace(TURNING, norm=HeadRMS())], ids=str)
def test_every_start_is_fitted_and_none_is_worse_than_no_attention(spec):
    lm = model(replace(spec, bias=False), bias=False)
    planned = changes(lm, plan_of(lm, "share:2"))
    fits = fit_groups(lm, groups_of(planned), planned, rows())
    assert list(fits) == [FIRST, CLOSED_FORM, AVERAGE]
    for start, of_layer in fits.items():
        makers = [name for name in of_layer if int(name.split(".")[1]) % 2 == 0]
        assert len(makers) == (0 if start == FIRST else 2)
        assert all(0 < fit.error < 1 for fit in of_layer.values())
    unfitted = fit_groups(lm, groups_of(planned), planned, rows(), naive=True)[FIRST]
    for name, fit in fits[FIRST].items():
        assert fit.error < unfitted[name].error


def test_the_best_start_is_that_of_the_least_loss():
    lm = model(seed=5)
    calibration = rows()
    found = convert(lm, "share:4", calibration=calibration, held_out=calibration)
    assert found.certificate.loss.change <= min(
        convert(lm, plan, calibration=calibration, held_out=calibration).certificate.loss.change
        for plan in (["keep", "share:4", "share:4", "share:4"],)
    )


def test_layers_left_over_stay_as_they_are():
    found = convert(model(depth=3), "share:2", calibration=rows())
    assert [spec.shares for spec in found.model.specs] == [None, 0, None]
    assert found.certificate.layers[2].exact
    assert convert(model(), "share:1").certificate.exact


def test_whole_inputs():
    inputs = rows()
    sizes = {**SIZES, "num_classes": 3}
    text = drawn(ClassifierConfig(**sizes).build(replace(SPEC, pattern=Full())), seed=1).eval()
    found = convert(text, "share:2", calibration=inputs, held_out=inputs)
    assert [spec.shares for spec in found.model.specs] == [None, 0, None, 2]
    assert found.certificate.layers[1].measured < 1.5
    small = {"image_size": 8, "patch_size": 4, "num_classes": 5, "d_model": 16, "depth": 2}
    vit = ViTConfig(**small, mlp_width=24).build(replace(SPEC, pattern=Full()))
    images = [torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    found = convert(drawn(vit, seed=1).eval(), "share:2", calibration=images)
    assert found.model(images[0]).shape == (3, 5)


@pytest.mark.parametrize(
    ("spec", "target", "match"),
    [
        (SPEC, "gqa:1,share:2", "stands alone"),
        (SPEC, "share", "share:N"),
        (SPEC, "share:0", "at least 1"),
        (SPEC, ["gqa:1", "share:2", "keep", "keep"], "becomes gqa:1"),
        (replace(SPEC, mixing=BandedAlignment(12, width=2)), "share:2", "mixes its values"),
        ([SPEC, replace(SPEC, num_kv_heads=1), SPEC, SPEC], "share:2", "num_kv_heads=1, not 2"),
        ([SPEC, replace(SPEC, shares=0), SPEC, SPEC], "share:2", "cannot be converted"),
        ([SPEC, replace(SPEC, shares=0), SPEC, SPEC], ["gqa:1", "keep", "keep", "keep"], "already"),
    ],
    ids=["two", "no number", "0", "changed", "mixing", "unlike", "a reader", "a maker"],
)
def test_refusals(spec, target, match):
    with pytest.raises(ConfigError, match=match):
        convert(model(spec), target, calibration=rows())


def test_models_that_cannot_share():
    with pytest.raises(ConfigError, match="calibration"):
        convert(model(), "share:2")
    sizes = {"source_vocabulary_size": 9, "target_vocabulary_size": 9, "length": 12, "d_model": 16}
    config = TranslatorConfig(**sizes, encoder_depth=2, decoder_depth=2, mlp_width=24)
    plain = AttentionSpec(d_model=16, num_heads=4)
    translator = config.build(plain, replace(plain, pattern=Causal()), plain)
    with pytest.raises(ConfigError, match="Translator"):
        convert(translator, "share:2", naive=True)


@pytest.mark.parametrize("encoder", [Efficient(), Optimised(), Latent()], ids=str)
def test_columns_and_latents_are_shared_too(encoder):
    spec = AttentionSpec(d_model=16, num_heads=4, pattern=Causal(), encoder=encoder)
    lm = model(spec)
    found = convert(lm, ["keep", "share:2", "keep", "keep"], calibration=rows())
    assert found.model.specs[1].shares == 0
    assert_close(
        found.model.blocks[0].attention.q_proj.weight, lm.blocks[0].attention.q_proj.weight
    )
    found = convert(lm, "share:2", calibration=rows())
    assert all(0 < layer.predicted < 1 for layer in found.certificate.layers[1::2])


def test_the_average_is_of_all_layers_of_a_group():
    lm = model(replace(SPEC, bias=False), bias=False)
    (group,) = groups_of(changes(lm, plan_of(lm, "share:4")))
    layers = {name: lm.get_submodule(name) for name in group.names}
    maps = {name: read(layer) for name, layer in layers.items()}
    second = {name: torch.eye(maps[name].k.shape[1]).double() for name in group.names}
    found = _candidates(group, maps, layers, second)[AVERAGE][group.maker]
    assert_close(found.k, torch.stack([maps[name].k for name in group.names]).mean(dim=0))
