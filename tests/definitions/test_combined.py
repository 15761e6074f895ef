"""a & b allows what both allow, a | b what either allows; each is causal by its own logic."""

from __future__ import annotations

import pytest

from suffice import attend
from suffice.patterns import And, Causal, Full, Or
from suffice.testing import assert_close, normal

CASES = {
    "full-and-causal": (Full() & Causal(), lambda f, c: f and c, True),
    "full-or-causal": (Full() | Causal(), lambda f, c: f or c, False),
    "causal-and-causal": (Causal() & Causal(), lambda f, c: c, True),
    "causal-or-causal": (Causal() | Causal(), lambda f, c: c, True),
    "nested": ((Full() | Causal()) & Causal(), lambda f, c: c, True),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 9), (9, 9), (5, 2)])
def test_allowed_pairs(name, queries, keys):
    pattern, logic, causal = CASES[name]
    table = [[logic(True, s <= keys - queries + t) for s in range(keys)] for t in range(queries)]
    assert pattern.mask(queries, keys).tolist() == table
    assert pattern.pairs(queries, keys) == sum(map(sum, table))
    assert pattern.causal is causal


def test_operators_build_the_values():
    assert isinstance(Full() & Causal(), And)
    assert isinstance(Full() | Causal(), Or)


@pytest.mark.parametrize("keys", [3, 5, 9])
def test_attends_as_its_equal(keys):
    q, k, v = (normal(1, 2, n, 3, seed=n) for n in (5, keys, keys))
    causal = attend(q, k, v, pattern=Causal())
    assert_close(attend(q, k, v, pattern=Full() & Causal()), causal)
    assert_close(attend(q, k, v, pattern=Full() | Causal()), attend(q, k, v))
