"""Full: every query sees every key."""

from __future__ import annotations

import pytest

from suffice import attend
from suffice.patterns import Full
from suffice.testing import assert_close, normal

from .loops import everything, head, tensor


@pytest.mark.parametrize("queries", [1, 4, 9])
@pytest.mark.parametrize("keys", [1, 4, 9])
def test_every_key_is_seen(queries, keys):
    q, k, v = normal(queries, 3, seed=1), normal(keys, 3, seed=2), normal(keys, 2, seed=3)
    want = head(q.tolist(), k.tolist(), v.tolist(), everything, 3**-0.5)
    got = attend(q[None, None], k[None, None], v[None, None], pattern=Full())
    assert_close(got, tensor([[want]]))
    assert Full().mask(queries, keys).all()
    assert Full().pairs(queries, keys) == queries * keys
    assert not Full().causal
