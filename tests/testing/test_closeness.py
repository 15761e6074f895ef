"""The one comparison: what each kind lets pass, and what its message says."""

from __future__ import annotations

import re

import pytest
import torch

from suffice.errors import ConfigError
from suffice.testing import assert_close, normal

ONE = torch.ones(3)
EPS = torch.finfo(torch.float32).eps


def refused(*args, told="got .*, want", **kwargs):
    with pytest.raises(AssertionError, match=told):
        assert_close(*args, **kwargs)


def test_exact_compares_every_bit():
    assert_close(ONE, ONE.clone(), "exact")
    refused(ONE + EPS, ONE, "exact", told=r"not exact: max abs 1\.19209e-07 \(allowed 0\)")
    assert_close(
        torch.tensor([torch.nan, torch.inf]), torch.tensor([torch.nan, torch.inf]), "exact"
    )
    refused(torch.tensor([torch.nan]), ONE[:1], "exact", told="got nan, want 1")
    assert_close(torch.tensor([3, 4]), torch.tensor([3, 4]), "exact")
    assert_close(torch.tensor([True]), torch.tensor([True]), "exact")
    refused(torch.tensor([3, 4]), torch.tensor([3, 5]), "exact", told=r"at \[1\]: got 4, want 5")


@pytest.mark.parametrize(
    ("dtype", "n", "bound"),
    [
        (torch.float64, 1, 1e-12),
        (torch.float64, 10_000, 1e-12),
        (torch.float32, 1, 8 * 2**-23),
        (torch.float32, 64, 64 * 2**-23),
        (torch.float16, 64, 2 * 2**-10),
        (torch.bfloat16, 64, 2 * 2**-7),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [0.5, 1.0, 4.0])
def test_same_math_allows_the_rounding_of_the_dtype(dtype, n, bound, size):
    want = torch.tensor([size, -size / 3], dtype=torch.float64).to(dtype).double()
    allowed = bound * max(size, 1.0)
    below, above = want.clone(), want.clone()
    below[1] += 0.5 * allowed
    above[1] += 2.0 * allowed
    assert_close(below.to(dtype), want, n=n)
    refused(above.to(dtype), want, n=n, told="not same_math")


def test_same_math_refuses_what_is_not_finite():
    refused(torch.tensor([torch.nan]), torch.tensor([torch.nan]))
    refused(torch.tensor([torch.inf]), torch.tensor([torch.inf]))
    refused(torch.tensor([torch.inf]), ONE[:1], told="max abs inf")


def test_a_mutation_of_any_element_is_found():
    want = normal(3, 4, 5, seed=1)
    for index in range(60):
        got = want.clone()
        got.view(-1)[index] += 1e-11
        refused(got, want, told=r"1 of 60 elements")


def test_quantised_allows_half_a_step():
    want = normal(100, seed=1, dtype=torch.float32)
    step = 0.1
    assert_close((want / step).round() * step, want, "quantised", step=step)
    refused((want / step).floor() * step, want, "quantised", step=step, told="not quantised")
    steps = torch.full((100,), 0.1)
    steps[0] = 0.0
    got = want.clone()
    got[1] += 0.04
    assert_close(got, want, "quantised", step=steps)
    got[0] += 0.04
    refused(got, want, "quantised", step=steps, told=r"at \[0\]")


def test_statistical_allows_four_standard_errors():
    want = torch.tensor([1.0, -2.0], dtype=torch.float64)
    samples = want + normal(400, 2, seed=1)
    assert_close(samples, want, "statistical")
    refused(samples + 0.5, want, "statistical", told="not statistical")
    assert_close(want.expand(3, 2), want, "statistical")
    refused(want.expand(3, 2) + 1e-6, want, "statistical")


def test_want_may_be_more_exact_than_got():
    assert_close(ONE, ONE.double())
    refused(ONE.double(), ONE, told="dtype torch.float64, want torch.float32")
    refused(ONE.half(), ONE, told="dtype torch.float16, want torch.float32")
    refused(torch.ones(3, dtype=torch.int64), ONE, told="dtype torch.int64")


def test_shapes_must_be_equal():
    refused(ONE, torch.ones(1, 3), told=r"shape \[3\], want \[1, 3\]")
    refused(ONE, torch.ones(1), told=r"shape \[3\], want \[1\]")
    refused(ONE, torch.ones(3, 3), "exact", told="not exact: shape")
    refused(torch.ones(4, 3), torch.ones(4), "statistical", told=r"shape \[3\], want \[4\]")


def test_the_message_tells_where_and_by_how_much():
    want = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    got = want.clone()
    got[1, 0] = 2.5
    got[0, 1] = 2.25
    with pytest.raises(AssertionError, match="not same_math") as refusal:
        assert_close(got, want)
    text = str(refusal.value)
    assert "max abs 0.5 (allowed 3.81e-06)" in text
    assert "2 of 4 elements" in text
    assert "at [1, 0]: got 2.5, want 2" in text
    rms = float(re.search(r"relative RMS ([0-9.]+)", text).group(1))
    assert rms == pytest.approx(((0.25 + 0.0625) / 25) ** 0.5, rel=1e-2)


def test_gradients_are_not_recorded():
    x = normal(3, seed=1).requires_grad_()
    assert_close(x * 2, (x + x).detach())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "near"}, "unknown kind of closeness 'near'"),
        ({"kind": "quantised"}, "step belongs|step to quantised"),
        ({"step": 0.1}, "give only what the kind uses"),
        ({"kind": "exact", "n": 4}, "give only what the kind uses"),
        ({"kind": "statistical", "n": 4}, "give only what the kind uses"),
    ],
)
def test_numbers_a_kind_does_not_use_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        assert_close(ONE, ONE, **arguments)


def test_nothing_is_not_close_to_nothing():
    for kind in ("exact", "same_math"):
        with pytest.raises(ConfigError, match="nothing to compare"):
            assert_close(torch.zeros(0), torch.zeros(0), kind)


def test_integers_do_not_round():
    with pytest.raises(ConfigError, match="does not round"):
        assert_close(torch.tensor([1]), torch.tensor([1]))


def test_one_sample_has_no_spread():
    with pytest.raises(ConfigError, match="statistical needs two samples"):
        assert_close(torch.ones(1, 3), torch.ones(3), "statistical")
