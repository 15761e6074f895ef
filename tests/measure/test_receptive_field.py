from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from suffice import preset
from suffice.measure.evaluation import receptive_field, sees_pairs, state_bytes
from suffice.mixing import Alignment
from suffice.models import LMConfig

SIZES = {"vocabulary_size": 30, "length": 32, "d_model": 16, "depth": 2, "mlp_width": 16}
WINDOW = preset("sliding_window", 16, 2, window=4, causal=True)
FULL = preset("standard", 16, 2, causal=True)


@pytest.mark.parametrize("window", [1, 2, 5])
def test_what_lies_beyond_the_reach_is_not_attended_and_what_lies_at_it_is(window):
    specs = [preset("sliding_window", 16, 2, window=w, causal=True) for w in (window, 3)]
    far = receptive_field(specs)
    assert far == window - 1 + 2
    torch.manual_seed(0)
    model = LMConfig(**SIZES, start=0.3).build(specs).eval()
    tokens = torch.randint(30, (1, 20))
    for back, attended in ((far, True), (far + 1, False)):
        other = tokens.clone()
        other[0, 19 - back] = (other[0, 19 - back] + 1) % 30
        same = torch.equal(model(tokens)[0, 19], model(other)[0, 19])
        assert same != attended, back


def test_what_is_no_pattern_reaches_any_number():
    infini = preset("infini", 16, 2, segment=4)
    mixed = replace(WINDOW, mixing=Alignment(32))
    linear = preset("linear", 16, 2, causal=True)
    for spec in (infini, mixed, linear):
        assert not sees_pairs(spec)
        assert receptive_field([WINDOW, spec]) is None
        assert receptive_field([spec], cache_tokens=3) is None
    assert sees_pairs(FULL)
    assert receptive_field([WINDOW, FULL]) is None
    assert receptive_field([WINDOW, FULL], cache_tokens=3) == 2 + 2


def test_state_is_that_of_what_can_still_be_seen():
    assert state_bytes([FULL], 10) == 10 * 2 * 16 * 4
    assert state_bytes([WINDOW, FULL], 10) == (4 + 10) / 2 * 2 * 16 * 4
    assert state_bytes([WINDOW], 3) == 3 * 2 * 16 * 4
    linear = preset("linear", 16, 2, causal=True)
    assert state_bytes([linear], 10) == state_bytes([linear], 1000) > 0
