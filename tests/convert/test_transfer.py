"""Conversions whose weights are no longer a softmax's of the queries and keys of before."""

from __future__ import annotations

import pytest
import torch

from suffice.convert import convert
from suffice.convert.calibration import Moments
from suffice.convert.maps import build, read
from suffice.convert.target import spec_after, steps_of
from suffice.convert.transfer import latent_keys
from suffice.encoders import MLA, HeadRMS
from suffice.errors import ConfigError
from suffice.kernels import Decayed, Elu
from suffice.models import LMConfig
from suffice.patterns import Causal
from suffice.positions import Rope, YarnScaling
from suffice.spec import AttentionSpec
from suffice.testing import assert_close, drawn

SIZES = {"vocabulary_size": 13, "length": 24, "d_model": 16, "depth": 2, "mlp_width": 24}
TARGETS = ("linear", "gla", "mla:12", "gqa:2,mla:6", "window:6,mla:8", "mla:8,window:6")


def spec_of(**fields):
    given = {"d_model": 16, "num_heads": 4, "pattern": Causal(), "position": Rope(), "bias": False}
    return AttentionSpec(**given | fields)


def model(**fields):
    config = LMConfig(**SIZES, positions="none", bias=False)
    return drawn(config.build(spec_of(**fields)), seed=1).eval()


def rows():
    draws = torch.Generator().manual_seed(0)
    return [torch.randint(13, (8, 24), generator=draws) for _ in range(3)]


@pytest.mark.parametrize("target", TARGETS)
def test_layers_learn_the_outputs_of_those_before(target):
    fitted, usual = (
        convert(model(), target, calibration=rows(), held_out=rows(), naive=naive)
        for naive in (False, True)
    )
    for layer, before in zip(fitted.certificate.layers, usual.certificate.layers, strict=True):
        assert layer.chosen == "attention transfer"
        assert layer.measured == pytest.approx(layer.predicted, rel=1e-3)
        assert layer.measured < before.measured
    tokens = rows()[0]
    with torch.no_grad():
        state = fitted.model.state()
        pieces = [fitted.model(tokens[:, a:b], state=state) for a, b in ((0, 15), (15, 24))]
        assert_close(torch.cat(pieces, dim=1), fitted.model(tokens))


def test_compositions():
    spec = spec_of(num_kv_heads=2)
    (linear,), (gla,), (mla,) = map(steps_of, ("linear", "gla", "mla:6"))
    assert spec_after(linear, spec, None).kernel == Elu()
    assert spec_after(gla, spec, None).kernel == Decayed(per="feature")
    after = spec_after(mla, spec, None)
    assert after.encoder == MLA(rank=6, rotary_dim=4, value_dim=4)
    assert (after.head_dim, after.score_scale) == (4, spec.score_scale)
    assert after.state_bytes(10) == 10 * (6 + 4) * 4 < spec.state_bytes(10)
    partial = spec_after(mla, spec_of(head_dim=6, position=Rope(features=4)), None)
    assert (partial.encoder.rotary_dim, partial.position) == (4, Rope())


POSITIONS = (Rope(), Rope(layout="interleaved"), Rope(scaling=YarnScaling(4.0, length=8)))


@pytest.mark.parametrize("position", POSITIONS, ids=repr)
def test_one_key_head_in_a_latent_that_holds_all_is_the_same_layer(position):
    """Its rotary key is that head's, nothing is left over, and inputs of +-1 have norm 1."""
    spec = spec_of(num_kv_heads=1, position=position)
    layer = drawn(model(num_kv_heads=1, position=position), seed=3).blocks[0].attention
    (step,) = steps_of("mla:16")
    after = spec_after(step, spec, None)
    built = build(
        latent_keys(read(layer), spec, after, Moments.of(torch.eye(17, dtype=torch.float64))),
        after,
        like=layer,
    )
    x = torch.randint(2, (2, 24, 16), generator=torch.Generator().manual_seed(5)) * 2.0 - 1.0
    with torch.no_grad():
        assert (built(x) - layer(x)).abs().max() <= 1e-3 * layer(x).abs().max()


@pytest.mark.parametrize(
    ("fields", "target", "named"),
    [
        ({}, "linear,gqa:2", "linear"),
        ({}, "mla:8,linear", "mla"),
        ({}, "mla:17", "mla:17"),
        ({"position": None}, "mla:8", "latent:R"),
        ({"bias": True}, "mla:8", "bias=True"),
        ({"norm": HeadRMS()}, "mla:8", "norm"),
        ({}, "window:8,linear", "pattern"),
    ],
)
def test_what_cannot_be(fields, target, named):
    fields = {name: value for name, value in fields.items() if value is not None}
    lm = model(**fields) if fields or named != "latent:R" else unplaced()
    with pytest.raises(ConfigError, match=named):
        convert(lm, target, calibration=rows())


def unplaced():
    spec = AttentionSpec(d_model=16, num_heads=4, pattern=Causal(), bias=False)
    return drawn(LMConfig(**SIZES).build(spec), seed=1).eval()
