"""Rounding: at least as good as to the nearest with the full range; GPTQ keeps outputs better."""

from __future__ import annotations

import sys

import pytest
import torch

from suffice.ops.native.matrix import in_panels, numbers_of
from suffice.quantise.quantise import codes_of, gptq, round_to_nearest
from suffice.testing import assert_close


def nearest(weight, bits, group):
    levels = 1 << (bits - 1)
    parts = weight.view(len(weight), -1, group)
    scales = (parts.abs().amax(dim=-1) / (levels - 1)).half()
    return codes_of(parts, scales[..., None], bits).flatten(1), scales


def error_of(weight, rounding, bits, gram=None):
    wrong = numbers_of(in_panels(*rounding, bits)).double() - weight
    gram = torch.eye(weight.shape[1]).double() if gram is None else gram
    return float(((wrong @ gram) * wrong).sum())


def correlated(inputs, samples=400):
    x = torch.randn(samples, inputs) @ torch.randn(inputs, inputs)
    return (x.t() @ x).double()


@pytest.mark.parametrize("bits", [8, 4])
def test_errors_are_at_most_half_a_step(bits):
    weight = torch.randn(20, 64)
    codes, scales = nearest(weight, bits, 32)
    wrong = numbers_of(in_panels(codes, scales, bits)) - weight
    steps = scales.float().repeat_interleave(32, dim=1)
    assert bool((wrong.abs() <= (0.5 + 127 * 2**-11) * steps).all())
    assert_close(round_to_nearest(weight, 8, 32)[0], nearest(weight, 8, 32)[0], "exact")


def test_sought_scales_lose_less():
    weight = torch.randn(40, 128)
    plain = error_of(weight, nearest(weight, 4, 32), 4)
    assert error_of(weight, round_to_nearest(weight, 4, 32), 4) < 0.8 * plain


def test_important_inputs_lose_less():
    weight, counts = torch.randn(40, 128), torch.ones(128)
    counts[::7] = 100.0
    plain, weighed = round_to_nearest(weight, 4, 32), round_to_nearest(weight, 4, 32, counts)
    gram = counts.double().diag()
    assert error_of(weight, weighed, 4, gram) < 0.8 * error_of(weight, plain, 4, gram)


def test_levels_that_fit_are_kept():
    weight = torch.tensor([[-8.0, 7.0, 3.0, 0.0], [8.0, -7.0, 1.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    weight = torch.cat([weight, weight], dim=1)
    for codes, scales in (
        round_to_nearest(weight, 4, 8),
        gptq(weight, 4, 8, torch.eye(8).double()),
    ):
        assert_close(numbers_of(in_panels(codes, scales, 4)), weight, "exact")


def test_rows_are_rounded_alone(monkeypatch):
    weight = torch.randn(9, 64)
    at_once = round_to_nearest(weight, 4, 32)
    monkeypatch.setattr(sys.modules["suffice.quantise.quantise"], "TOGETHER", 100)
    for got, want in zip(round_to_nearest(weight, 4, 32), at_once, strict=True):
        assert_close(got, want, "exact")


def test_carried_errors_keep_what_the_map_makes_of_inputs():
    weight, gram = torch.randn(40, 128), correlated(128)
    plain = error_of(weight, round_to_nearest(weight, 4, 32), 4, gram)
    assert error_of(weight, gptq(weight, 4, 32, gram), 4, gram) < 0.5 * plain


def test_inputs_that_say_nothing_leave_plain_rounding():
    weight = torch.randn(20, 64)
    want = round_to_nearest(weight, 4, 32)
    for gram in (torch.zeros(64, 64), 3 * torch.eye(64)):
        got = gptq(weight, 4, 32, gram.double())
        for one, other in zip(got, want, strict=True):
            assert_close(one, other, "exact")
    one_sided = torch.zeros(64, 64).double()
    one_sided[0, 0] = 1.0
    assert error_of(weight, gptq(weight, 4, 32, one_sided), 4) < 2 * error_of(weight, want, 4)
