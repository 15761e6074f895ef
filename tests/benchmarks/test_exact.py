"""What a side is held against before it is timed: rows of the specification, their gradients."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from benchmarks.exact import check, checked_rows, rows_of
from suffice import AttentionSpec, attend
from suffice.ops import AttentionCall
from suffice.patterns import Causal
from suffice.testing import assert_close, normal

LENGTH = 200
INPUTS = [normal(1, 2, LENGTH, 4, seed=seed, dtype=torch.float32) for seed in range(3)]
PROBLEM = AttentionCall.of(AttentionSpec(d_model=8, num_heads=2, pattern=Causal()), LENGTH, LENGTH)
exact = partial(rows_of, problem=PROBLEM)


@pytest.mark.parametrize("length", [1, 5, 200, 4096])
def test_rows_are_at_both_ends_and_between(length):
    rows = checked_rows(length)
    assert rows[0] == 0
    assert rows[-1] == length - 1
    assert torch.equal(rows, rows.unique())
    if length == 4096:
        assert {255, 256, 257, 2048} <= set(rows.tolist())
        assert len(rows) < 256


def test_rows_are_those_of_the_whole_output():
    double = [x.double() for x in INPUTS]
    whole = attend(*double, pattern=Causal(), impl="reference")
    rows = torch.tensor([0, 7, 199])
    assert_close(exact(*double, rows), whole[:, :, rows])


@pytest.mark.parametrize("backward", [False, True])
def test_what_is_right_passes(backward):
    told = check(partial(attend, pattern=Causal()), exact, INPUTS, backward=backward, n=LENGTH)
    assert told is None  # what is wrong raises


def late(q, k, v):
    """Wrong in one row that is checked."""
    out = attend(q, k, v, pattern=Causal())
    return out + 1e-3 * (torch.arange(LENGTH) == LENGTH - 1)[:, None]


def detached(q, k, v):
    """Right, but it does not learn its keys."""
    return attend(q, k.detach() + 0 * k, v, pattern=Causal())


def test_what_is_wrong_does_not_pass():
    for backward in (False, True):
        with pytest.raises(AssertionError, match="not same_math"):
            check(late, exact, INPUTS, backward=backward, n=LENGTH)
    check(detached, exact, INPUTS, backward=False, n=LENGTH)
    with pytest.raises(AssertionError, match="not same_math"):
        check(detached, exact, INPUTS, backward=True, n=LENGTH)


def test_another_pattern_does_not_pass():
    wrong = partial(rows_of, problem=replace(PROBLEM, scale=0.4))
    with pytest.raises(AssertionError, match="not same_math"):
        check(partial(attend, pattern=Causal()), wrong, INPUTS, backward=False, n=LENGTH)
