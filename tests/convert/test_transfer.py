"""Conversions whose weights are no longer a softmax's of the queries and keys of before."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch

from suffice.convert import convert
from suffice.convert.calibration import Moments, attention_layers
from suffice.convert.fit import latent_keys, transfer
from suffice.convert.maps import build, read
from suffice.convert.target import spec_after, steps_of
from suffice.encoders import MLA, HeadRMS
from suffice.errors import ConfigError
from suffice.kernels import Decayed, Elu
from suffice.layers import Attention
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


@torch.no_grad()
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("position", POSITIONS, ids=repr)
def test_keys_in_a_latent_are_turned_by_the_mean_phase_once_the_shared_key_is_taken_out(
    position, groups
):
    """Inputs of +-1 are not correlated and have norm 1, and the latent holds all that is left."""
    spec = spec_of(num_kv_heads=groups, position=position)
    layer = drawn(model(num_kv_heads=groups, position=position), seed=3).blocks[0].attention
    after = spec_after(*steps_of("mla:16"), spec, None)
    moments = Moments.of(torch.eye(17, dtype=torch.float64))
    built = build(latent_keys(read(layer), spec, after, moments), after, like=layer)
    x = torch.randint(2, (2, 24, 16), generator=torch.Generator().manual_seed(5)) * 2.0 - 1.0

    pairs = ([0, 2], [1, 3]) if position.layout == "interleaved" else ([0, 1], [2, 3])

    def complex_of(weight):
        """Maps [heads, 4, 16] as [heads, pairs, 16]."""
        heads = weight.double().unflatten(0, (-1, 4)).numpy()
        return heads[:, pairs[0]] + 1j * heads[:, pairs[1]]

    rotating = built.q_proj.weight.unflatten(0, (4, 8))[:, 4:].flatten(0, 1)
    shared = complex_of(built.kv_a_proj.weight[16:])[0]
    own = complex_of(layer.k_proj.weight).repeat(4 // groups, axis=0)
    share = (own * shared.conj()).sum(-1) / (shared * shared.conj()).sum(-1)
    left = own - share[..., None] * shared
    near = 1 / (1 + np.arange(256))
    turns = np.exp(1j * position.angles(torch.arange(256), 4).numpy())
    phase = (near[:, None] * turns).sum(axis=0) / near.sum()
    rows = x.double().numpy()
    q, q_rotating, k = (
        np.einsum("btm,hpm->bhtp", rows, maps)
        for maps in (complex_of(layer.q_proj.weight), complex_of(rotating), left)
    )
    k_shared = (rows @ shared.T) * turns[:24]
    scores = np.einsum("bhtp,bhsp,p->bhts", q, k.conj(), phase)
    scores += np.einsum("bhtp,bsp->bhts", q_rotating * turns[:24], k_shared.conj())
    scores = scores.real * position.amplitude**2 / 2
    scores[..., np.triu(np.ones((24, 24), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    v = np.einsum("btm,gdm->bgtd", rows, layer.v_proj.weight.double().unflatten(0, (-1, 4)).numpy())
    heads = np.einsum("bhts,bhsd->bthd", weights, v.repeat(4 // groups, axis=1))
    want = heads.reshape(2, 24, 16) @ layer.o_proj.weight.double().numpy().T
    assert np.abs(built(x).numpy() - want).max() <= 1e-3 * np.abs(want).max()


def test_every_candidate_is_trained_by_a_step_of_adam_for_each_batch_at_a_falling_rate():
    lm, batches, told = model(), rows(), []
    layers = attention_layers(lm)
    linear = spec_of(kernel=Elu())
    students = {
        name: [drawn(Attention(linear), seed=seed) for seed in range(count)]
        for name, count in zip(layers, (2, 1), strict=True)
    }
    copies = deepcopy(students)
    with torch.no_grad():
        transfer(lm, students, iter(batches), told.append)
    assert told == sorted(told)
    assert (len(told), told[-1]) == (8 * len(batches), len(batches))
    calls = {}
    for name, layer in layers.items():
        layer.register_forward_hook(
            lambda _, args, out, name=name: calls.update({name: (*args, out)})
        )
    adam = torch.optim.Adam(
        [p for each in copies.values() for one in each for p in one.parameters()]
    )
    for step in range(24):
        adam.param_groups[0]["lr"] = 2e-3 * (1 - 0.95 * step / 24)
        with torch.no_grad():
            lm(batches[step % 3])
        losses = [
            (one(calls[name][0]) - calls[name][-1]).square().sum() / calls[name][-1].square().sum()
            for name, each in copies.items()
            for one in each
        ]
        adam.zero_grad()
        sum(losses).backward()
        adam.step()
    for name, each in copies.items():
        for one, other in zip(each, students[name], strict=True):
            for want, got in zip(one.parameters(), other.parameters(), strict=True):
                assert_close(got.detach(), want.detach())


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
