"""The positions of the first Transformer: values, any length, every dtype."""

from __future__ import annotations

import math

import pytest
import torch

from suffice.layers import sinusoidal
from suffice.layers.sinusoidal import CACHED_NUMBERS
from suffice.testing import assert_close


@pytest.mark.parametrize("d_model", [1, 2, 5, 8])
@pytest.mark.parametrize("length", [0, 1, 7, 300])
def test_values(length, d_model):
    got = sinusoidal(length, d_model, dtype=torch.float64)
    assert got.shape == (length, d_model)
    for t in range(length):
        for i in range(d_model):
            angle = t / 10_000 ** (2 * (i // 2) / d_model)
            want = math.cos(angle) if i % 2 else math.sin(angle)
            assert abs(got[t, i].item() - want) <= 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_lower_types_are_rounded_once(dtype):
    exact = sinusoidal(2000, 64, dtype=torch.float64)
    got = sinusoidal(2000, 64, dtype=dtype)
    assert_close(got, exact.to(dtype), "exact")
    assert sinusoidal(3, 4).dtype is torch.float32


def test_long_tables_are_not_cached():
    length = CACHED_NUMBERS // 4 + 3
    far = sinusoidal(length, 4, dtype=torch.float64)
    assert_close(far[:9], sinusoidal(9, 4, dtype=torch.float64))
    assert abs(far[-1, 0].item() - math.sin(length - 1)) <= 1e-10


def test_a_result_is_its_own():
    before = sinusoidal(9, 4).clone()
    sinusoidal(9, 4).zero_()
    assert_close(sinusoidal(9, 4), before, "exact")


def test_a_table_cached_in_inference_serves_training():
    with torch.inference_mode():
        sinusoidal(11, 6)
    x = torch.zeros(11, 6, requires_grad=True)
    (x * sinusoidal(11, 6)).sum().backward()
    assert_close(x.grad, sinusoidal(11, 6), "exact")


def test_other_devices_and_graphs():
    assert sinusoidal(3, 4, device="meta").device.type == "meta"
    torch._dynamo.reset()
    fast = torch.compile(lambda x: x + sinusoidal(5, 8), backend="eager", fullgraph=True)
    assert_close(fast(torch.zeros(5, 8)), sinusoidal(5, 8))
