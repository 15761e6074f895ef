from __future__ import annotations

import math

import pytest

from suffice.train.optimiser import share


def test_constant_rises_linearly_and_stays():
    rates = [share(s, total=10, warmup=0.3, schedule="constant") for s in range(10)]
    assert rates == [1 / 3, 2 / 3, 1.0] + [1.0] * 7


def test_cosine_without_warmup_starts_full_and_would_end_at_zero():
    rates = [share(s, total=4, warmup=0.0, schedule="cosine") for s in range(5)]
    wanted = [0.5 + 0.5 * math.cos(math.pi * s / 4) for s in range(5)]
    assert rates == pytest.approx(wanted)
    assert rates[0] == 1.0
    assert rates[4] == 0.0


def test_cosine_begins_after_the_warmup():
    rates = [share(s, total=6, warmup=1 / 3, schedule="cosine") for s in range(6)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.8535533906, 0.5, 0.1464466094])


def test_warmup_of_nearly_everything_never_divides_by_zero():
    assert [share(s, total=2, warmup=0.99, schedule="cosine") for s in range(2)] == [0.5, 1.0]
