"""Rfa: phi(x) = sines and cosines of omega_i . u, u = x / |x|, i = 1..F/2.

E[phi(q) . phi(k)] / (F/2) = exp(-|u_q - u_k|^2 / 2), which is exp(u_q . u_k) but for a factor that
cancels. The sum of a query's products is at least F / 2048 in magnitude.
"""

from __future__ import annotations

import math

import pytest
import torch

from suffice import AttentionSpec
from suffice.kernels import Rfa
from suffice.patterns import Causal, Full
from suffice.testing import assert_close, normal

from .draws import advantage, omegas, pairs, slopes
from .loops import built, dot, everything, gradients_agree, outputs, up_to_self


def kernel(omega):
    """phi(q) . phi(k), computed from omega; not divided by the number of its rows."""

    def phi(x):
        norm = math.sqrt(dot(x, x))
        unit = [number / norm if norm else 0.0 for number in x]
        angles = [dot(row, unit) for row in omega]
        return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]

    return lambda query, key: dot(phi(query), phi(key))


def of_layer(layer):
    """The kernel of a layer, and the floor of its sums."""
    omega = layer.state_dict()["features.omega"].tolist()
    return {"weigh": kernel(omega), "least": len(omega) / 1024}


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("features", [2, 6, 32])
def test_layer(length, is_causal, features):
    pattern, see = (Causal(), up_to_self) if is_causal else (Full(), everything)
    spec = AttentionSpec(
        d_model=8,
        num_heads=4,
        num_kv_heads=2,
        pattern=pattern,
        kernel=Rfa(features, seed=1),
    )
    layer, x = built(spec), normal(2, length, 8, seed=length)
    assert layer.state_dict()["features.omega"].shape == (features // 2, 8 // 4)
    assert_close(layer(x), outputs(layer, x, see, **of_layer(layer)))


@pytest.mark.parametrize("length", [63, 65, 130])
def test_layer_over_several_chunks(length):
    layer = built(AttentionSpec(d_model=4, num_heads=2, pattern=Causal(), kernel=Rfa(32)))
    x = normal(1, length, 4, seed=length)
    assert_close(layer(x), outputs(layer, x, up_to_self, **of_layer(layer)))


def test_a_zero_query_or_key_has_the_features_of_zero():
    layer = built(AttentionSpec(d_model=8, num_heads=2, kernel=Rfa(32), bias=False))
    x = normal(2, 5, 8, seed=1)
    x[:, 2] = 0
    assert_close(layer(x), outputs(layer, x, **of_layer(layer)))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("off", [1e-4, -1e-4, 5e-4, 2e-3, -2e-3])
def test_sums_near_zero_have_a_floor(is_causal, off):
    """One frequency and one key whose angle is a quarter turn but for `off`: cos is -off.

    The first row then has the weight off * 1024 at most, and 1 or -1 above the floor.
    """
    pattern, see = (Causal(), up_to_self) if is_causal else (Full(), everything)
    spec = AttentionSpec(d_model=4, num_heads=1, pattern=pattern, kernel=Rfa(2), bias=False)
    layer, x = built(spec), normal(1, 3 if is_causal else 1, 4, seed=1)
    q, k = (part(x)[0, 0] for part in (layer.q_proj, layer.k_proj))
    apart = q / q.norm() - k / k.norm()
    turn = (math.pi / 2 + off) * apart / apart.square().sum()
    layer.features.load_state_dict({"omega": turn.detach()[None].float()})
    got = layer(x)
    assert_close(got, outputs(layer, x, see, **of_layer(layer)))
    share = (got[0, 0] / layer.o_proj(layer.v_proj(x))[0, 0]).mean()
    assert (share.abs() < 0.6) == (abs(off) < 1e-3)


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradient(is_causal):
    pattern = Causal() if is_causal else Full()
    layer = built(AttentionSpec(d_model=4, num_heads=2, pattern=pattern, kernel=Rfa(64)))
    assert gradients_agree(layer, normal(2, 5, 4, seed=1))


def draws(rows, width, seeds):
    return omegas([Rfa(2 * rows, seed=s) for s in range(seeds)], width)


def estimates(omega, q, k):
    """phi(q) . phi(k) / n [N, P] of N draws [N, n, D] and P pairs [P, D] of norm 1.

    sin a sin b + cos a cos b = cos(a - b).
    """
    return (omega @ (q - k).mT).cos().mean(dim=1)


def exact(q, k):
    return (-(q - k).square().sum(-1) / 2).exp()


def test_these_estimates_are_the_kernel():
    """The matrix form used below, held against the loops used above."""
    omega, (q, k) = draws(6, 4, 2), pairs(4, size=1.0)
    for draw, row in zip(omega, estimates(omega, q, k), strict=True):
        weigh = kernel(draw.tolist())
        want = [weigh(a, b) / 6 for a, b in zip(q.tolist(), k.tolist(), strict=True)]
        assert_close(row, torch.tensor(want, dtype=torch.float64))


@pytest.mark.parametrize("rows", [3, 8, 20])
def test_expectation_is_the_gaussian_of_the_directions(rows):
    q, k = pairs(8, size=1.0)
    assert_close(estimates(draws(rows, 8, 600), q, k), exact(q, k), "statistical")


def test_error_falls_like_one_over_the_root_of_the_features():
    q, k = pairs(8, size=1.0)
    sizes = [8, 32, 128]
    errors = [estimates(draws(rows, 8, 480), q, k) - exact(q, k) for rows in sizes]
    assert_close(slopes(errors, sizes), torch.tensor(-0.5, dtype=torch.float64), "statistical")


@pytest.mark.parametrize("rows", [8, 16])
def test_orthogonal_draws_beat_independent_ones(rows):
    q, k = pairs(8, size=1.0)
    error = estimates(draws(rows, 8, 1500), q, k) - exact(q, k)
    independent = estimates(normal(1500, rows, 8, seed=11), q, k) - exact(q, k)
    assert advantage(error, independent) > 2


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_norms_do_not_matter(size):
    """Scaling x scales queries and keys, whose directions alone count; values follow x."""
    layer = built(AttentionSpec(d_model=8, num_heads=2, kernel=Rfa(32), bias=False))
    x = normal(2, 6, 8, seed=1)
    assert_close(layer(size * x) / size, layer(x))


def test_the_seed_is_the_draw():
    spec = AttentionSpec(d_model=8, num_heads=2, kernel=Rfa(8, seed=3))
    again = AttentionSpec.from_json(spec.to_json())
    first, second = (built(s).state_dict()["features.omega"] for s in (spec, again))
    assert torch.equal(first, second)
    assert not torch.equal(*draws(4, 8, 2))
