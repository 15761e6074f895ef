"""Favor: phi(x)_f = exp(omega_f . x' - |x'|^2 / 2) / sqrt(F) with x' = sqrt(scale) x.

The rows of omega are normal, those of one block of D orthogonal to each other; so
E[phi(q) . phi(k)] = exp(scale q . k), and the error falls like 1 / sqrt(F).
"""

from __future__ import annotations

import math

import pytest
import torch

from suffice import AttentionSpec
from suffice.kernels import Favor
from suffice.ops import OPS, AttentionCall, MaskInputs
from suffice.ops.native.library import why_not
from suffice.ops.op import Parts
from suffice.patterns import Causal, Full
from suffice.testing import assert_close, normal

from .draws import advantage, omegas, pairs, slopes
from .loops import built, dot, everything, gradients_agree, outputs, up_to_self


def kernel(omega, scale):
    """phi(q) . phi(k), computed from omega."""

    def phi(x):
        x = [math.sqrt(scale) * number for number in x]
        half = dot(x, x) / 2
        return [math.exp(dot(row, x) - half) / math.sqrt(len(omega)) for row in omega]

    return lambda query, key: dot(phi(query), phi(key))


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("features", [1, 3, 16])
def test_layer(length, is_causal, features):
    pattern, see = (Causal(), up_to_self) if is_causal else (Full(), everything)
    spec = AttentionSpec(
        d_model=8,
        num_heads=4,
        num_kv_heads=2,
        pattern=pattern,
        kernel=Favor(features, seed=1),
    )
    layer, x = built(spec), normal(2, length, 8, seed=length)
    omega = layer.state_dict()["features.omega"].tolist()
    assert (len(omega), len(omega[0])) == (features, 8 // 4)
    weigh = kernel(omega, (8 / 4) ** -0.5)
    assert_close(layer(x), outputs(layer, x, see, weigh=weigh))


@pytest.mark.parametrize("length", [63, 65, 130])
def test_layer_over_several_chunks(length):
    spec = AttentionSpec(d_model=4, num_heads=2, pattern=Causal(), kernel=Favor(6))
    layer, x = built(spec), normal(1, length, 4, seed=length)
    weigh = kernel(layer.state_dict()["features.omega"].tolist(), 2**-0.5)
    assert_close(layer(x), outputs(layer, x, up_to_self, weigh=weigh))


@pytest.mark.parametrize("scale", [0.2, 1.0, 3.0])
def test_another_scale(scale):
    layer = built(AttentionSpec(d_model=8, num_heads=2, kernel=Favor(7), scale=scale))
    x = normal(2, 6, 8, seed=1)
    weigh = kernel(layer.state_dict()["features.omega"].tolist(), scale)
    assert_close(layer(x), outputs(layer, x, weigh=weigh))


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradient(is_causal):
    """The stabilisers cancel, so they add nothing to the gradient."""
    pattern = Causal() if is_causal else Full()
    layer = built(AttentionSpec(d_model=4, num_heads=2, pattern=pattern, kernel=Favor(5)))
    assert gradients_agree(layer, normal(2, 5, 4, seed=1))


def draws(features, width, seeds):
    return omegas([Favor(features, seed=s) for s in range(seeds)], width)


def estimates(omega, q, k):
    """phi(q) . phi(k) [N, P] of N draws [N, F, D] and P pairs [P, D], scale 1."""
    norms = (q.square().sum(-1) + k.square().sum(-1)) / 2
    return (omega @ (q + k).mT - norms).exp().mean(dim=1)


def test_these_estimates_are_the_kernel():
    """The matrix form used below, held against the loops used above."""
    omega, (q, k) = draws(6, 4, 2), pairs(4)
    for draw, row in zip(omega, estimates(omega, q, k), strict=True):
        weigh = kernel(draw.tolist(), 1.0)
        want = [weigh(a, b) for a, b in zip(q.tolist(), k.tolist(), strict=True)]
        assert_close(row, torch.tensor(want, dtype=torch.float64))


@pytest.mark.parametrize("features", [3, 8, 20])
def test_expectation_is_the_exponential(features):
    q, k = pairs(8)
    got = estimates(draws(features, 8, 600), q, k)
    assert_close(got, (q * k).sum(-1).exp(), "statistical")


def test_error_falls_like_one_over_the_root_of_the_features():
    q, k = pairs(8)
    exact, sizes = (q * k).sum(-1).exp(), [8, 32, 128]
    errors = [estimates(draws(features, 8, 480), q, k) - exact for features in sizes]
    assert_close(slopes(errors, sizes), torch.tensor(-0.5, dtype=torch.float64), "statistical")


@pytest.mark.parametrize("features", [8, 16])
def test_orthogonal_draws_beat_independent_ones(features):
    """Norms of 0.4: larger ones need many more draws, the exponentials' tails are so heavy."""
    q, k = pairs(8, size=0.4)
    exact = (q * k).sum(-1).exp()
    error = estimates(draws(features, 8, 3000), q, k) - exact
    independent = estimates(normal(3000, features, 8, seed=11), q, k) - exact
    assert advantage(error, independent) > 2


@pytest.mark.parametrize(("features", "width"), [(1, 4), (4, 4), (6, 4), (11, 4), (3, 8)])
def test_rows_of_a_block_are_orthogonal(features, width):
    for omega in draws(features, width, 3):
        for start in range(0, features, width):
            block = omega[start : start + width].float()
            unit = block / block.norm(dim=1, keepdim=True)
            assert_close(unit @ unit.T, torch.eye(len(unit)), n=width)


def test_rows_have_the_lengths_of_normal_vectors():
    """|omega_f|^2 is chi-square of D degrees: mean D, variance 2 D; each number has mean 0."""
    omega = draws(16, 8, 300)
    squares = omega.square().sum(-1).flatten()
    assert_close(squares, torch.tensor(8.0, dtype=torch.float64), "statistical")
    assert_close((squares - 8).square(), torch.tensor(16.0, dtype=torch.float64), "statistical")
    assert_close(omega.mean(1), torch.zeros(8, dtype=torch.float64), "statistical")


def test_the_seed_is_the_draw():
    want = draws(16, 8, 3)
    torch.manual_seed(8)
    assert torch.equal(draws(16, 8, 3), want)
    assert not torch.equal(want[0], want[1])
    spec = AttentionSpec(d_model=8, num_heads=2, kernel=Favor(7, seed=3))
    again = AttentionSpec.from_json(spec.to_json())
    first, second = (built(s).state_dict()["features.omega"] for s in (spec, again))
    assert torch.equal(first, second)


def test_only_redraw_draws_again():
    """Training never does; another seed does, and the old seed brings the old omega back."""
    layer = built(AttentionSpec(d_model=8, num_heads=2, kernel=Favor(7, seed=3)))
    x = normal(2, 6, 8, seed=1)
    want = layer.train()(x)
    assert torch.equal(layer.eval()(x), want)
    layer.features.redraw(4)
    assert not torch.allclose(layer(x), want)
    weigh = kernel(layer.state_dict()["features.omega"].tolist(), 0.5)
    assert_close(layer(x), outputs(layer, x, weigh=weigh))
    layer.features.redraw(3)
    assert torch.equal(layer(x), want)


def attended(op, q, k, v, is_causal):
    """Attend by one op in float32; return the outputs, and the formula in logarithms in float64."""
    pattern = Causal() if is_causal else Full()
    sizes = {"d_model": 32, "num_heads": 2, "pattern": pattern, "kernel": Favor(64)}
    spec = AttentionSpec(**sizes)
    features = built(spec).features
    call = AttentionCall.of(spec, q.shape[2], k.shape[2])
    got = OPS[op](q.float(), k.float(), v.float(), MaskInputs(), call, Parts(features=features))
    omega = features.omega.double() * spec.score_scale**0.5
    of_q, of_k = q.float().double() @ omega.T, k.float().double() @ omega.T
    of_k = of_k - spec.score_scale * k.float().double().square().sum(-1, keepdim=True) / 2
    logs = (of_q[:, :, :, None] + of_k[:, :, None]).logsumexp(-1)
    if is_causal:
        later = torch.ones(logs.shape[-2:], dtype=torch.bool).triu(1)
        logs = logs.masked_fill(later, -torch.inf)
    return got, logs.softmax(-1) @ v.float().double()


def directed(norm, seed):
    x = normal(2, 2, 70, 16, seed=seed)
    return x / x.norm(dim=-1, keepdim=True) * norm


@pytest.mark.parametrize("op", ["scan", "matmul", "native_scan", "reference"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("norm", [1.0, 10.0, 30.0])
def test_large_norms_are_the_formula(op, is_causal, norm):
    """Exponents of hundreds: the sum over features is taken in logarithms."""
    if op == "native_scan" and why_not():
        pytest.skip(why_not())
    got, want = attended(op, directed(norm, 1), directed(norm, 2), directed(1.0, 3), is_causal)
    assert_close(got, want, n=round(64 * (1 + norm) ** 2))  # exponents round in proportion


@pytest.mark.parametrize("op", ["scan", "matmul", "native_scan"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_products_that_vanish_are_told(op, is_causal):
    """A query against keys of the opposite direction; a query that sees no key is no such case."""
    if op == "native_scan" and why_not():
        pytest.skip(why_not())
    q = directed(150.0, 1)
    with pytest.warns(RuntimeWarning, match="vanish"):
        attended(op, q, -q, directed(1.0, 3), is_causal)
    spec = AttentionSpec(d_model=32, num_heads=2, kernel=Favor(64))
    hidden = torch.zeros(2, 70, dtype=torch.bool)
    assert torch.isfinite(built(spec)(normal(2, 70, 32, seed=1), valid=hidden)).all()
