"""A query with no key to see gives exactly 0: output, weights and gradient."""

from __future__ import annotations

import pytest
import torch

from suffice import AttentionSpec, attend, preset, weights
from suffice.patterns import Causal
from suffice.testing import assert_close, bits, normal

from .loops import built, head, tensor


@pytest.mark.parametrize("keys", [1, 2, 5, 9])
def test_rows_with_keys_are_untouched_by_rows_without(keys):
    q, k, v = (normal(1, 1, n, 3, seed=i).requires_grad_() for i, n in enumerate((4, keys, keys)))
    mask = bits(1, 1, 4, keys, seed=keys)
    mask[0, 0, 1] = False
    see = mask[0, 0].tolist()
    want = head(
        q[0, 0].tolist(), k[0, 0].tolist(), v[0, 0].tolist(), lambda t, s: see[t][s], 3**-0.5
    )
    got = attend(q, k, v, mask=mask)
    assert_close(got, tensor([[want]]))
    assert torch.equal(got[0, 0, 1], torch.zeros(3, dtype=torch.float64))
    assert torch.equal(weights(q, k, mask=mask)[0, 0, 1], torch.zeros(keys, dtype=torch.float64))
    gradient = torch.autograd.grad(got[0, 0, 1].sum(), (q, k, v), retain_graph=True)
    assert all(torch.equal(g, torch.zeros_like(g)) for g in gradient)
    (all_of_q,) = torch.autograd.grad(got.square().sum(), q)
    assert torch.equal(all_of_q[0, 0, 1], torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize(("queries", "keys"), [(5, 2), (9, 1), (3, 2)])
def test_causal_queries_before_the_first_key(queries, keys):
    q, k, v = (normal(2, 2, n, 3, seed=i) for i, n in enumerate((queries, keys, keys)))
    got = attend(q, k, v, pattern=Causal())
    assert torch.equal(got[:, :, : queries - keys], torch.zeros(2, 2, queries - keys, 3).double())
    assert (got[:, :, queries - keys :] != 0).all()


def test_no_keys_at_all():
    q, k, v = normal(2, 2, 3, 4, seed=1), normal(2, 2, 0, 4, seed=2), normal(2, 2, 0, 5, seed=3)
    assert torch.equal(attend(q, k, v), torch.zeros(2, 2, 3, 5, dtype=torch.float64))
    assert weights(q, k).shape == (2, 2, 3, 0)


@pytest.mark.parametrize(
    "spec",
    [
        AttentionSpec(d_model=6, num_heads=2),
        preset("optimised", 6, 2),
        preset("efficient", 6, 2),
        preset("super_attention", 6, 2, length=5),
        preset("super_attention", 6, 2, length=5, causal=True),
    ],
    ids=["standard", "optimised", "efficient", "super", "causal-super"],
)
def test_a_layer_gives_its_output_bias(spec):
    layer, x = built(spec), normal(2, 5, 6, seed=1)
    valid = torch.tensor([[False] * 5, [True] * 5])
    got = layer(x, valid=valid)
    assert torch.equal(got[0], layer.o_proj.bias.expand(5, 6))
    assert_close(got[1:], layer(x[1:]))
