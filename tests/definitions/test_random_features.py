"""Kernels of random features: Favor of the exponential, Rfa of the Gaussian of directions.

Favor: phi(x)_f = exp(omega_f . x' - |x'|^2 / 2) / sqrt(F) with x' = sqrt(scale) x.
E[phi(q) . phi(k)] = exp(scale q . k).
Rfa: phi(x) = sines and cosines of omega_i . u, u = x / |x|, i = 1..F/2.
E[phi(q) . phi(k)] / (F/2) = exp(-|u_q - u_k|^2 / 2), which is exp(u_q . u_k) but for a factor that
cancels. The sum of a query's products is at least F / 2048 in magnitude.

The rows of omega are normal, those of one block of D orthogonal to each other; the errors fall like
1 / sqrt(F).
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from suffice import AttentionSpec
from suffice.kernels import Favor, Kernel, Rfa
from suffice.ops import OPS, AttentionCall, MaskInputs
from suffice.ops.native.library import why_not
from suffice.ops.op import Parts
from suffice.patterns import Causal, Full
from suffice.testing import assert_close, normal

from .loops import built, dot, everything, gradients_agree, outputs, up_to_self

ahead = pytest.mark.parametrize("is_causal", [False, True])
both = pytest.mark.parametrize("kind", [Favor, Rfa])


def kernel(kind, omega, scale=1.0):
    """phi(q) . phi(k), computed from omega; of Rfa not divided by the number of its rows."""

    def favor(x):
        x = [math.sqrt(scale) * number for number in x]
        half = dot(x, x) / 2
        return [math.exp(dot(row, x) - half) / math.sqrt(len(omega)) for row in omega]

    def rfa(x):
        norm = math.sqrt(dot(x, x))
        unit = [number / norm if norm else 0.0 for number in x]
        angles = [dot(row, unit) for row in omega]
        return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]

    phi = favor if kind is Favor else rfa
    return lambda query, key: dot(phi(query), phi(key))


def of_layer(layer, scale=None):
    """The kernel of a layer, and the floor of its sums."""
    omega, kind = layer.state_dict()["features.omega"].tolist(), type(layer.spec.kernel)
    scale = len(omega[0]) ** -0.5 if scale is None else scale
    least = len(omega) / 1024 if kind is Rfa else 0.0
    return {"weigh": kernel(kind, omega, scale), "least": least}


@pytest.mark.parametrize(
    ("value", "rows"),
    [(Favor(1, seed=1), 1), (Favor(3, seed=1), 3), (Favor(16, seed=1), 16), (Rfa(2, seed=1), 1)]
    + [(Rfa(6, seed=1), 3), (Rfa(32, seed=1), 16)],
    ids=repr,
)
@pytest.mark.parametrize("length", [1, 2, 5, 9])
@ahead
def test_layer(length, is_causal, value, rows):
    pattern, see = (Causal(), up_to_self) if is_causal else (Full(), everything)
    sizes = {"d_model": 8, "num_heads": 4, "num_kv_heads": 2}
    layer = built(AttentionSpec(**sizes, pattern=pattern, kernel=value))
    x = normal(2, length, 8, seed=length)
    assert layer.state_dict()["features.omega"].shape == (rows, 8 // 4)
    assert_close(layer(x), outputs(layer, x, see, **of_layer(layer)))


@pytest.mark.parametrize("length", [63, 65, 130])
@pytest.mark.parametrize("value", [Favor(6), Rfa(32)], ids=repr)
def test_layer_over_several_chunks(length, value):
    layer = built(AttentionSpec(d_model=4, num_heads=2, pattern=Causal(), kernel=value))
    x = normal(1, length, 4, seed=length)
    assert_close(layer(x), outputs(layer, x, up_to_self, **of_layer(layer)))


@pytest.mark.parametrize("value", [Favor(5), Rfa(64)], ids=repr)
@ahead
def test_gradient(is_causal, value):
    """The stabilisers of Favor cancel, so they add nothing to the gradient."""
    pattern = Causal() if is_causal else Full()
    layer = built(AttentionSpec(d_model=4, num_heads=2, pattern=pattern, kernel=value))
    assert gradients_agree(layer, normal(2, 5, 4, seed=1))


@pytest.mark.parametrize("scale", [0.2, 1.0, 3.0])
def test_another_scale(scale):
    layer = built(AttentionSpec(d_model=8, num_heads=2, kernel=Favor(7), scale=scale))
    x = normal(2, 6, 8, seed=1)
    assert_close(layer(x), outputs(layer, x, **of_layer(layer, scale)))


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


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_norms_do_not_matter(size):
    """Scaling x scales queries and keys, whose directions alone count; values follow x."""
    layer = built(AttentionSpec(d_model=8, num_heads=2, kernel=Rfa(32), bias=False))
    x = normal(2, 6, 8, seed=1)
    assert_close(layer(size * x) / size, layer(x))


def omegas(kernels: list[Kernel], width: int) -> Tensor:
    """[draws, rows, width] in float64, from the state of the maps these kernels build."""
    maps = (kernel.build(head_dim=width, scale=1.0, device="cpu") for kernel in kernels)
    return torch.stack([m.state_dict()["omega"].double() for m in maps])


def pairs(width: int, *, count: int = 5, size: float = 0.8, seed: int = 3) -> tuple[Tensor, Tensor]:
    """Queries and keys [count, width] of this norm."""
    rows = normal(2, count, width, seed=seed)
    q, k = size * rows / rows.norm(dim=-1, keepdim=True)
    return q, k


def slopes(errors: list[Tensor], sizes: list[int]) -> Tensor:
    """Slope of log RMS error over log size, for each of 12 groups of draws.

    errors: for each size, [draws, pairs].
    """
    steps = [e.reshape(12, -1).square().mean(dim=1).sqrt().log() for e in errors]
    x = torch.tensor(sizes, dtype=torch.float64).log()
    x = x - x.mean()
    return (torch.stack(steps, dim=1) * x).sum(dim=1) / x.square().sum()


def advantage(error: Tensor, other: Tensor) -> float:
    """How much smaller the squared error is than the other's, in standard errors."""
    a, b = error.square().mean(dim=1), other.square().mean(dim=1)
    spread = (a.var() / len(a) + b.var() / len(b)).sqrt()
    return float((b.mean() - a.mean()) / spread)


def draws(kind, rows, width, seeds):
    features = 2 * rows if kind is Rfa else rows
    return omegas([kind(features, seed=s) for s in range(seeds)], width)


def estimates(kind, omega, q, k):
    """phi(q) . phi(k) [N, P] of N draws [N, F, D] and P pairs [P, D], scale 1; Rfa's over its rows.

    Directions of norm 1 are given to Rfa: sin a sin b + cos a cos b = cos(a - b).
    """
    if kind is Rfa:
        return (omega @ (q - k).mT).cos().mean(dim=1)
    norms = (q.square().sum(-1) + k.square().sum(-1)) / 2
    return (omega @ (q + k).mT - norms).exp().mean(dim=1)


def exact(kind, q, k):
    return (-(q - k).square().sum(-1) / 2).exp() if kind is Rfa else (q * k).sum(-1).exp()


def posed(kind, width, size=0.8):
    return pairs(width, size=1.0 if kind is Rfa else size)


@both
def test_these_estimates_are_the_kernel(kind):
    """The matrix form used below, held against the loops used above."""
    omega, (q, k) = draws(kind, 6, 4, 2), posed(kind, 4)
    for draw, row in zip(omega, estimates(kind, omega, q, k), strict=True):
        weigh, rows = kernel(kind, draw.tolist()), 6 if kind is Rfa else 1
        want = [weigh(a, b) / rows for a, b in zip(q.tolist(), k.tolist(), strict=True)]
        assert_close(row, torch.tensor(want, dtype=torch.float64))


@both
@pytest.mark.parametrize("rows", [3, 8, 20])
def test_expectation_is_the_kernel_that_is_approximated(kind, rows):
    q, k = posed(kind, 8)
    got = estimates(kind, draws(kind, rows, 8, 600), q, k)
    assert_close(got, exact(kind, q, k), "statistical")


@both
def test_error_falls_like_one_over_the_root_of_the_features(kind):
    (q, k), sizes = posed(kind, 8), [8, 32, 128]
    want = exact(kind, q, k)
    errors = [estimates(kind, draws(kind, rows, 8, 480), q, k) - want for rows in sizes]
    assert_close(slopes(errors, sizes), torch.tensor(-0.5, dtype=torch.float64), "statistical")


@both
@pytest.mark.parametrize("rows", [8, 16])
def test_orthogonal_draws_beat_independent_ones(kind, rows):
    """Norms of 0.4: larger ones need many more draws, the exponentials' tails are so heavy."""
    (q, k), count = posed(kind, 8, size=0.4), 1500 if kind is Rfa else 3000
    want = exact(kind, q, k)
    error = estimates(kind, draws(kind, rows, 8, count), q, k) - want
    independent = estimates(kind, normal(count, rows, 8, seed=11), q, k) - want
    assert advantage(error, independent) > 2


@pytest.mark.parametrize(("features", "width"), [(1, 4), (4, 4), (6, 4), (11, 4), (3, 8)])
def test_rows_of_a_block_are_orthogonal(features, width):
    for omega in draws(Favor, features, width, 3):
        for start in range(0, features, width):
            block = omega[start : start + width].float()
            unit = block / block.norm(dim=1, keepdim=True)
            assert_close(unit @ unit.T, torch.eye(len(unit)), n=width)


def test_rows_have_the_lengths_of_normal_vectors():
    """|omega_f|^2 is chi-square of D degrees: mean D, variance 2 D; each number has mean 0."""
    omega = draws(Favor, 16, 8, 300)
    squares = omega.square().sum(-1).flatten()
    assert_close(squares, torch.tensor(8.0, dtype=torch.float64), "statistical")
    assert_close((squares - 8).square(), torch.tensor(16.0, dtype=torch.float64), "statistical")
    assert_close(omega.mean(1), torch.zeros(8, dtype=torch.float64), "statistical")


@both
def test_the_seed_is_the_draw(kind):
    want = draws(kind, 16, 8, 3)
    torch.manual_seed(8)
    assert torch.equal(draws(kind, 16, 8, 3), want)
    assert not torch.equal(want[0], want[1])
    spec = AttentionSpec(d_model=8, num_heads=2, kernel=kind(8, seed=3))
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
    assert_close(layer(x), outputs(layer, x, **of_layer(layer)))
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
