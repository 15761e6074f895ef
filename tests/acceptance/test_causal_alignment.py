"""T2: with q = 0 and v = identity the output row is allowed / num_allowed: the mask itself."""

from __future__ import annotations

import pytest
import torch

from suffice import attend, weights
from suffice.patterns import Causal
from suffice.testing import assert_close

from .mechanisms import accepting, named

SIZES = [(1, 9), (3, 9), (9, 9), (8, 9), (5, 2)]
CALLS = [
    (impl, heads)
    for heads in ((1, 1), (4, 2))
    for impl in ("auto", *accepting(9, 9, heads=heads, widths=(9, 9), pattern=Causal()))
]


def expected(queries, keys):
    allowed = torch.tensor(
        [[j <= i + keys - queries for j in range(keys)] for i in range(queries)]
    ).double()
    return allowed / allowed.sum(-1, keepdim=True).clamp(min=1)


@pytest.mark.parametrize(("impl", "heads"), CALLS)
def test_read_out_through_attend(impl, heads):
    for queries, keys in SIZES:
        q = torch.zeros(2, heads[0], queries, keys, dtype=torch.float64)
        k = torch.randn(2, heads[1], keys, keys, dtype=torch.float64)
        v = torch.eye(keys, dtype=torch.float64).expand(2, heads[1], keys, keys)
        with named(queries, keys):
            out = attend(q, k, v, pattern=Causal(), impl=impl)
            want = expected(queries, keys).expand_as(out)
            assert_close(out, want)
            assert torch.equal(out > 0, want > 0)
            assert_close(weights(q, k, pattern=Causal()), want)
